"""A client that gets killed: a program that publishes numbers, or consumes them, and writes a line for all it was told.

python -m tests.system.mortal publish|consume HOST:PORT NAME EVENTS

Lines: nanoseconds of the machine's clock, and `stored NUMBER` (all up to it are), `got NUMBER` or `acknowledged NUMBER`
(the server has that on disk).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence

from headgate_client.aio import AsyncClient
from headgate_client.values import Received, new_event

RATE_PER_S = 200
EVENTS_AT_ONCE = 20
ACKNOWLEDGED_SHARE = 0.8
"""The rest is nacked, as a consumer does that cannot do its work now."""


def say(word: str, numbers: Sequence[str]) -> None:
    """One write to the file behind standard output: what SIGKILL leaves is whole lines, and all that were said."""
    now = time.monotonic_ns()
    os.write(1, "".join(f"{now} {word} {number}\n" for number in numbers).encode())


async def publish(server: str, name: str, events: int) -> None:
    async with AsyncClient(server) as client, client.producer("mortal", name=name) as producer:
        for first in range(producer.next_sequence, events, EVENTS_AT_ONCE):
            numbers = range(first, min(first + EVENTS_AT_ONCE, events))
            await producer.publish([new_event("mortal", "/s", {"n": number}, id=str(number)) for number in numbers])
            say("stored", [str(numbers[-1])])
            await asyncio.sleep(EVENTS_AT_ONCE / RATE_PER_S)


async def consume(server: str, name: str, events: int) -> None:
    """Until it is killed; the number of events is the publisher's."""
    async with AsyncClient(server) as client, client.subscribe("mortal", consumer=name) as consumer:
        while True:
            batch = await consumer.next_batch(EVENTS_AT_ONCE)
            say("got", [received.event.id for received in batch])
            done: list[Received] = []
            for received in batch:
                if random.random() < ACKNOWLEDGED_SHARE:
                    done.append(received)
                else:
                    consumer.nack(received)
            stale = await consumer.ack(*done) if done else []
            say("acknowledged", [received.event.id for received in done if received.ack_id not in stale])


if __name__ == "__main__":
    work, server, name, events = sys.argv[1:]
    asyncio.run({"publish": publish, "consume": consume}[work](server, name, int(events)))
