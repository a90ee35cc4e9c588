"""What all supervised processes share."""

import subprocess
import sys

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


def test_a_signal_after_the_loop_does_not_break_off_what_a_process_says_last() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "last words\n", "")
