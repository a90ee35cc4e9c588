"""Consume a subscription: each event is handed out until it is acknowledged, over restarts of both sides.

python -m examples.client_subscribe 127.0.0.1:8081 default/large-orders
"""

import asyncio
import sys

from headgate_client.aio import AsyncClient


async def consume(server: str, subscription: str, count: int | None = None) -> list[int]:
    """The numbers of the orders that came, up to `count` of them."""
    numbers: list[int] = []
    async with AsyncClient(server) as client, client.subscribe(subscription) as consumer:
        while count is None or len(numbers) < count:
            received = await anext(consumer)
            order = received.json()
            numbers.append(order["number"])
            print(f"order {order['number']} of {order['total']} at {received.partition}:{received.offset}")
            consumer.ack(received)  # goes in the background; await it to know that it is on disk
    return numbers


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
