"""A dispatcher on Kafka in a process of its own: prints its partitions whenever they change, until SIGTERM.

python -m tests.backend.dispatch_process BOOTSTRAP PREFIX DATA URL TARGETS
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import structlog
import uvloop

from headgate.server.processes.kafka.dispatcher import kafka_dispatcher
from headgate.server.processes.kafka.partition import KafkaDispatcherOptions
from tests.backend.dispatch_feed import made_target
from tests.backend.outbox_stream import outbox_config
from tests.delivery.harness import Routes


def routes(url: str, count: int) -> Routes:
    """Every second target is ordered."""
    return Routes(*(made_target(number, f"{url}{number}", ordered=number % 2 == 0) for number in range(1, count + 1)))


async def main(bootstrap: str, prefix: str, data: str, url: str, targets: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    told: list[int] = []

    def tell(_: str) -> None:
        nonlocal told
        if told != (now := sorted(dispatcher.partitions)):
            told = now
            sys.stdout.write(json.dumps(now) + "\n")
            sys.stdout.flush()

    options = KafkaDispatcherOptions(
        config=outbox_config(bootstrap, prefix),
        data=Path(data),
        token=bytes(32),
        store=routes(url, int(targets)),
        on_look=tell,
    )
    async with kafka_dispatcher(options, stop) as dispatcher:
        await dispatcher.run()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # standard output is the test's
    uvloop.run(main(*sys.argv[1:]))
