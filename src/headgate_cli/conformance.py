"""`headgate conformance`: checks a broker against the Broker contract, requirement by requirement."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headgate_api.errors import InvalidInputError
from headgate_conformance import broker
from headgate_conformance.broker import CaseStatus
from headgate_conformance.broker_context import BrokerAddress, CheckEnvironment


def conformance(
    ingress: Annotated[str, typer.Option(help="A publish URL, such as http://127.0.0.1:8080/default/default.")],
    api: Annotated[
        str, typer.Option(help="URL of the Kubernetes-style API; checks that need a trigger are skipped without it.")
    ] = "",
    metrics: Annotated[str, typer.Option(help="URL of the metrics in Prometheus' text format.")] = "",
    restart: Annotated[
        str, typer.Option(help="A command that kills the broker (SIGKILL) and returns when it is ready again.")
    ] = "",
    host: Annotated[str, typer.Option(help="Host under which the broker reaches this machine.")] = "127.0.0.1",
    only: Annotated[
        list[str] | None, typer.Option(help="Only the check with this id, such as D08. Repeatable.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one object for each requirement, then the summary.")
    ] = False,
) -> None:
    """Check a broker against the Knative Broker contract: control plane, routing, data plane.

    It creates brokers and triggers in the namespace `default`, and deletes them. The exit status is 1 if a check fails.

    Example: headgate conformance --ingress http://127.0.0.1:8080/default/default --api http://127.0.0.1:8080
    """
    unknown = set(only or ()) - {check.id for check in broker.CHECKS}
    if unknown:
        raise InvalidInputError(f"no check is called {', '.join(sorted(unknown))}", hint="ids are C01 to D21")
    with CheckEnvironment(BrokerAddress(ingress, api=api, metrics=metrics, restart=restart, host=host)) as environment:
        findings = broker.run(environment, only or ())
    if markdown:
        typer.echo(broker.table(findings), nl=False)
    for finding in findings if not markdown else ():
        shown = f"{finding.result:8}{finding.id}  {finding.level:7}{finding.title}: {finding.seen}"
        typer.echo(msgspec.json.encode(finding).decode() if as_json else shown)
    counts = {verdict.value: sum(f.result is verdict for f in findings) for verdict in CaseStatus}
    summary: dict[str, str | int] = {"suite": "broker", "checks": len(findings), **counts}
    if as_json:
        typer.echo(msgspec.json.encode(summary).decode())
    elif not markdown:
        typer.echo(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    if counts[CaseStatus.FAILED]:
        raise typer.Exit(1)
