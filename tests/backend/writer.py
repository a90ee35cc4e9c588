"""A program that appends batches until it is killed, and prints the name of each that was acknowledged.

python -m tests.backend.writer NAME embedded DIRECTORY
python -m tests.backend.writer NAME kafka BOOTSTRAP PREFIX
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from headgate.ingress.partitions import EventAppender
from tests.backend.contract import entries
from tests.backend.stores import opened

SIZES = (1, 50, 3, 200)
PRODUCERS = 4


async def produce(appender: EventAppender, name: str) -> None:
    for number in count():
        size = SIZES[number % len(SIZES)]
        batch = f"{name}.{number}"
        await appender.append({0: entries(*[f"{batch}/{index}/{size}" for index in range(size)])}, 100 * size)
        sys.stdout.write(f"{batch}\n")
        sys.stdout.flush()


async def main(name: str, *address: str) -> None:
    appender = await opened(*address).appender()
    await asyncio.gather(*[produce(appender, f"{name}-{number}") for number in range(PRODUCERS)])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
