"""Read what a broker has accepted so far, by a filter, and remember where to go on.

python -m examples.client_read 127.0.0.1:8081 default/default
"""

import asyncio
import sys

from headgate.expr import property
from headgate_client.aio import AsyncClient


async def read(server: str, broker: str, start: str = "earliest") -> tuple[list[int], str]:
    """The numbers of large orders, and the position behind the last event."""
    async with AsyncClient(server) as client:
        # CEL; or a dict of any dialect: {"cesql": "..."}; or a condition that Python builds.
        wanted = 'ce.type == "order.paid" && data.total >= 900'
        async with client.read(broker, start=start, filter=wanted, follow=False) as reader:
            numbers = [read.json()["number"] async for read in reader]
            position = reader.position
        from_shop = property("source") == "/shop"
        async with client.read(broker, filter=from_shop, follow=False) as reader:
            orders = [read.event.id async for read in reader]
    print(f"{len(numbers)} large orders of {len(orders)}; go on at {position}")
    return numbers, position


if __name__ == "__main__":
    asyncio.run(read(*sys.argv[1:]))
