"""The process that keeps the cache of the objects in a server without the role control: it follows their topic.

It also tells the other servers the numbers of this one.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.limits import HEARTBEAT_S
from headgate.server import child, ready
from headgate.server.kafka.numbers import tell_numbers
from headgate.store.kafka.objects import KafkaObjects


def run(context: child.Context) -> None:
    """Follows until told to stop."""
    asyncio.run(_follow(context))


async def _follow(context: child.Context) -> None:
    settings, stop, stopped = context.settings, asyncio.Event(), threading.Event()
    path = settings.data / "control.db"
    objects = await asyncio.to_thread(KafkaObjects.open, path, context.on_kafka.kafka, "")
    child.on_stop(child.setter(stop))  # not before: a signal ends a process that waits for Kafka
    mark = ready.Mark(settings.run_directory, context.part.name)
    with ThreadPoolExecutor(1, "objects") as threads:
        following: asyncio.Future[None] = asyncio.get_running_loop().run_in_executor(threads, objects.follow, stopped)
        stopping = asyncio.create_task(stop.wait())
        telling = asyncio.create_task(tell_numbers(settings, context.on_kafka.kafka))
        try:
            mark.ready(True)
            ends: list[asyncio.Future[Any]] = [following, stopping, telling]
            while not any(one.done() for one in ends):
                mark.beat()
                await asyncio.wait(ends, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            mark.ready(False)
        finally:
            stopped.set()
            await asyncio.wait([following])
            failure = await child.ended(telling)
            objects.close()
        following.result()
        if failure is not None:
            raise failure
