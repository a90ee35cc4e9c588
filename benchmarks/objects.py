"""Many objects at once by the API: brokers and triggers, over some keep-alive connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from pyreqwest.client import Client, ClientBuilder

from headgate.testing.server import Object, Server

CONNECTIONS = 8
"""Creations that come together share a commit."""
READY_S_MAX = 900.0


async def create_all(
    server: Server, kind: str, objects: Iterable[Object], tell: Callable[[int], None] = lambda _: None
) -> None:
    """Creates all objects of a kind, each in the namespace that it names.

    Args:
        server: Where.
        kind: `brokers` or `triggers`.
        objects: As `headgate.testing.object_of` makes them.
        tell: Called with how many there are by now.
    """
    waiting = iter(objects)
    made = 0

    async def create(client: Client, left: Iterator[Object]) -> None:
        nonlocal made
        for one in left:
            url = server.objects_url(kind, one["metadata"]["namespace"])
            answer = await client.post(url).body_json(one).build().send()
            if answer.status != 201:
                name = one["metadata"]["name"]
                raise SystemExit(f"error: creating {kind} {name}: {answer.status} {await answer.text()}")
            made += 1
            tell(made)

    async with ClientBuilder().build() as client, asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(create(client, waiting))


def wait_ready(server: Server, triggers: Iterable[Object]) -> None:
    """Waits until the triggers created last are Ready; those before them came into force no later.

    Args:
        server: Where.
        triggers: All of them, in the order in which they were created.
    """
    for one in list(triggers)[-CONNECTIONS:]:
        metadata = one["metadata"]
        server.wait_trigger_ready(metadata["namespace"], metadata["name"], seconds=READY_S_MAX)
