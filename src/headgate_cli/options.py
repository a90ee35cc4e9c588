"""Options that many commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer


def offers(plural: str) -> Callable[[typer.Context, str], list[str]]:
    """What a shell offers for a word that names an object of this kind; the server is asked when Tab is pressed."""

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        from headgate_cli.completion import names_there

        return names_there(plural, ctx, incomplete)

    return offered


Server = Annotated[str, typer.Option("--server", envvar="HEADGATE_SERVER", help="URL of the running server.")]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        envvar="HEADGATE_NAMESPACE",
        help="Namespace of what is named without one; that of --context.",
        autocompletion=offers("namespaces"),
    ),
]
Broker = Annotated[
    str,
    typer.Option("--broker", "-b", help="NAME or NAMESPACE/NAME of the broker.", autocompletion=offers("brokers")),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print JSON: one object on each line.")]
