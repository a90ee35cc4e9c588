"""What all supervised processes share."""

import gc
import subprocess
import sys
import threading
import weakref

from headgate.server import child
from headgate_api import limits

ENDING = """
import asyncio, os, signal
from headgate.server import child

async def serve():
    child.on_drain(child.setter(drain := asyncio.Event()))
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(drain.wait(), 30)

asyncio.run(serve())
os.kill(os.getpid(), signal.SIGUSR1)
print("last words")
"""

STOPPING = """
import os, signal, threading, time
from headgate.server import child

lock, stopped = threading.Lock(), threading.Event()

def stop():
    with lock:
        stopped.set()

child.on_stop(stop)
with lock:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
print(stopped.wait(30))
"""

SPARED = """
import gc
from headgate.server import child

child.spare_collector()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
cache = [[number] for number in range(100_000)]
print(looks, gc.get_freeze_count() > 0)
"""


def test_a_cache_that_fills_makes_the_collector_look_at_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", SPARED], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("[] True\n", "")


def test_few_objects_that_hold_much_are_collected_and_a_cache_that_fills_costs_one_look_a_step() -> None:
    """What nothing but a cycle holds is gone once it is GC_GROWTH_BYTES; the collector counts objects, not bytes."""
    used, looks = [0], list[int]()
    growth = child.Growth(lambda: used[0])

    def noted(phase: str, info: dict[str, int]) -> None:
        looks.extend([info["generation"]] * (phase == "stop"))

    was = gc.get_threshold()
    gc.collect()
    gc.set_threshold(limits.GC_YOUNG_OBJECTS)
    gc.callbacks.append(noted)
    try:
        gone = cycle()
        growth.look()
        assert gone() is not None
        for used[0] in range(0, 4 * limits.GC_GROWTH_BYTES, limits.GC_GROWTH_BYTES // 4):
            growth.look()
        assert (gone(), looks) == (None, [1, 1, 1])
        looks.clear()
        used[0] = 0
        growth.look()
        for used[0] in (limits.GC_WHOLE_GROWTH_BYTES, limits.GC_WHOLE_GROWTH_BYTES + 1):
            growth.look()
        assert looks == [2]
    finally:
        gc.callbacks.remove(noted)
        gc.set_threshold(*was)


def test_a_process_knows_its_own_memory() -> None:
    before = child._resident_bytes()
    much = bytearray(64 << 20)
    assert child._resident_bytes() - before > len(much) // 2


class Link:
    """Holds itself."""


def cycle() -> weakref.ref[Link]:
    link = Link()
    link.own = link  # type: ignore[attr-defined]
    return weakref.ref(link)


def test_a_stop_that_comes_while_the_main_thread_holds_a_lock_waits_for_nobody() -> None:
    """The lock of a `threading.Event`, for example, while `wait` is about to wait: its `set` takes it, too."""
    command = [sys.executable, "-c", STOPPING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as part:
        assert part.stdin is not None  # stays open: the supervisor lives
        assert part.stdout is not None
        watchdog = threading.Timer(30, part.kill)
        watchdog.start()
        said = part.stdout.read()
        watchdog.cancel()
    assert said == "True\n"


def test_a_signal_after_the_loop_does_not_break_off_what_a_process_says_last() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "last words\n", "")
