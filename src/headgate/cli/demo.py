"""`headgate demo`: shows the server at work, and checks every count."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from headgate.demo.run import run
from headgate.server import preflight


def demo(
    events: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many events are published.")] = 4_000,
    rate: Annotated[float, typer.Option(min=1.0, max=10_000.0, help="Events per second.")] = 250.0,
) -> None:
    """Show Headgate at work: a server, triggers in several dialects, a producer and a subscriber, all on this machine.

    It takes half a minute. The server listens only on free loopback ports. Its data is deleted at the end.

    Exit status: 0 when every trigger got exactly its events, else 1.

    Example: headgate demo

    Example: headgate demo --events 20000 --rate 1000
    """
    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    preflight.check_spark()
    raise typer.Exit(asyncio.run(run(events, rate, console)))
