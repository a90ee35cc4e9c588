"""The process of a server without the role control that keeps the cache of the objects, and tells its numbers."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial

from headgate.backend.kafka.objects import KafkaObjects
from headgate.server import child, ready
from headgate.server.processes.kafka.numbers import tell_numbers


def run(context: child.Context) -> None:
    """Follows until told to stop."""
    asyncio.run(_follow(context))


async def _follow(context: child.Context) -> None:
    settings, stop = context.settings, asyncio.Event()
    path = settings.data / "control.db"
    objects = await asyncio.to_thread(KafkaObjects, path, context.on_kafka.kafka, "")
    child.on_stop(child.setter(stop))  # not before: a signal ends a process that waits for Kafka
    report = ready.PartReport(settings.run_directory, context.part.name)
    report.ready(True)
    works = (report.beating(), tell_numbers(settings, context.on_kafka.kafka))
    with closing(objects):
        await child.until_stopped(stop, works, (objects.follow,), partial(report.ready, False))
