"""The process that keeps the cache of the objects in a server without the role control: it follows their topic.

It also tells the other servers the numbers of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from headgate.server import child, ready
from headgate.server.kafka.numbers import tell_numbers
from headgate.store.kafka.objects import KafkaObjects
from headgate_api.limits import HEARTBEAT_S


def run(context: child.Context) -> None:
    """Follows until told to stop."""
    asyncio.run(_follow(context))


async def _follow(context: child.Context) -> None:
    settings, stop = context.settings, asyncio.Event()
    path = settings.data / "control.db"
    objects = await asyncio.to_thread(KafkaObjects.open, path, context.on_kafka.kafka, "")
    child.on_stop(child.setter(stop))  # not before: a signal ends a process that waits for Kafka
    report = ready.PartReport(settings.run_directory, context.part.name)

    async def beat() -> None:
        report.ready(True)
        while True:
            report.beat()
            await asyncio.sleep(HEARTBEAT_S)

    tasks = [asyncio.create_task(beat()), asyncio.create_task(tell_numbers(settings, context.on_kafka.kafka))]
    with contextlib.closing(objects):
        await child.until_stopped(stop, tasks, (objects.follow,), partial(report.ready, False))
