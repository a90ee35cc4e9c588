"""The Broker contract: each numbered requirement as a check, run against any broker.

    with CheckEnvironment(BrokerAddress("http://127.0.0.1:8080/default/default")) as environment:
        findings = run(environment)

The requirements are those of Knative's control plane (C), event routing (R) and data plane (D) specifications. A check
makes brokers and triggers of its own through the Kubernetes-style API and is its own subscriber; without an API only
what a bare publish URL shows is checked. What a check cannot see from outside is skipped with the reason, never passed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headgate_conformance import broker_control, broker_data, broker_routing
from headgate_conformance.broker_context import (
    BrokerApiError,
    Check,
    CheckContext,
    CheckEnvironment,
    Facility,
    SkippedError,
    ViolationError,
)

CHECKS: Final[tuple[Check, ...]] = (*broker_control.CHECKS, *broker_routing.CHECKS, *broker_data.CHECKS)
"""All of them, in the order of their ids."""

_AT_ONCE: Final = 10
"""Checks that run together: most of the time they wait, and a broker takes many new triggers at once."""
_WITHOUT: Final = {
    Facility.API: "needs triggers: no --api was given",
    Facility.RESTART: "needs the broker to be killed and started again: no --restart was given",
    Facility.METRICS: "needs the broker's numbers: no --metrics was given",
}


class CaseStatus(enum.StrEnum):
    """What came of a check, or of a case of a file of public cases."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"  # fails, and is listed with its reason; no check is
    SKIPPED = "skipped"  # cannot be checked here, or binds only its source, as it states itself


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a check: what was seen, or why it was skipped."""

    id: str
    level: str
    title: str
    result: CaseStatus
    seen: str


def run(environment: CheckEnvironment, only: Iterable[str] = ()) -> list[Finding]:
    """Runs these checks, or all; those that kill the broker come last, one by one. The environment is entered."""
    wanted = frozenset(only)
    chosen = [check for check in CHECKS if not wanted or check.id in wanted]
    together = [check for check in chosen if Facility.RESTART not in check.needs]
    alone = [check for check in chosen if Facility.RESTART in check.needs]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="check") as threads:
        results = dict(zip(together, threads.map(lambda check: _find(environment, check), together), strict=True))
    results.update((check, _find(environment, check)) for check in alone)
    return [results[check] for check in chosen]


def _find(environment: CheckEnvironment, check: Check) -> Finding:
    def found(result: CaseStatus, seen: str) -> Finding:
        return Finding(check.id, check.level, check.title, result, seen)

    for need in check.needs:
        if need not in environment.offers:
            return found(CaseStatus.SKIPPED, _WITHOUT[need])
    try:
        with CheckContext(environment, check.id.lower()) as context:
            return found(CaseStatus.PASSED, check.work(context))
    except SkippedError as skipped:
        return found(CaseStatus.SKIPPED, skipped.message)
    except (ViolationError, BrokerApiError) as violation:
        return found(CaseStatus.FAILED, violation.message)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # an object that has another form
        return found(CaseStatus.FAILED, f"an answer does not have the form it should: {type(error).__name__}: {error}")


def table(findings: Sequence[Finding]) -> str:
    """The findings as a Markdown table."""
    rows = ["| id | level | requirement | result | seen |\n|---|---|---|---|---|\n"]
    rows += [f"| {f.id} | {f.level} | {_cell(f.title)} | {f.result} | {_cell(f.seen)} |\n" for f in findings]
    return "".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
