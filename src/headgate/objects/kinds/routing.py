"""The routing table: targets and their rules, without Kubernetes' shapes, for the other rooms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from headgate.filter.compile.plan import CompiledFilter
from headgate_api import limits
from headgate_api.objects.kinds import AuthSpec

BackoffPolicy = Literal["linear", "exponential"]
Format = Literal["binary", "json", "batch"]
PullType = Literal["exclusive", "failover", "shared", "keyShared"]


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """How events go to a target.

    Attributes:
        retry: Attempts after the first one; None: as many as fit into RETRY_S_DEFAULT.
        backoff_policy: Wait before the n-th retry, n from 1: `linear` delay x n, `exponential` delay x 2^n (Knative).
        ordered: Of one partition key one event at a time, in the order of the log.
        retry_after_max_s: What a Retry-After may make of the wait; 0 ignores it.
        dead_letter_uri: Where events go that cannot be delivered. None: nowhere, they are dropped and counted. Empty:
            a sink is configured that has no address, they stay in the dead-letter store.
        filter_errors_kept: Events for which the filter is an error are dead letters.
        ttl_us: How long after an event was stored, or was to be sent, it is sent, microseconds; None for no bound.
        delay_us: How long after it was stored an event is sent at the earliest, microseconds.
        expired_kept: Events that are too late, by that or their expirytime, are dead letters.
        rate_per_s: Attempts a second at most; None for no bound.
        dead_letter_ca: CA of its host, as PEM, beside the system's; empty for none.
        dead_letter_audience: Of the tokens that requests to it carry; empty for none.
        handshake: Whether whoever gets events is asked first.
        retention_us: How long consumers see the broker's events, microseconds; None for no bound of its own.
    """

    retry: int | None
    backoff_policy: BackoffPolicy
    backoff_delay_s: float
    timeout_s: float
    ordered: bool = False
    retry_after_max_s: float = float(limits.BACKOFF_SECONDS_MAX)
    format: Format = "binary"
    dead_letter_uri: str | None = None
    parallelism: int = limits.TARGET_PARALLEL_DEFAULT
    batch_size: int = 1
    batch_wait_s: float = 0.0
    filter_errors_kept: bool = False
    ttl_us: int | None = None
    delay_us: int = 0
    expired_kept: bool = False
    rate_per_s: float | None = None
    auth: AuthSpec | None = None
    dead_letter_auth: AuthSpec | None = None
    dead_letter_ca: str = ""
    dead_letter_audience: str = ""
    handshake: bool = False
    retention_us: int | None = None

    @property
    def has_sink(self) -> bool:
        return self.dead_letter_uri is not None

    @property
    def keeps_refused(self) -> bool:
        """Whether events may be dead letters without an attempt."""
        return (self.filter_errors_kept or self.expired_kept) and self.has_sink

    def keeps(self, result: str) -> bool:
        """Whether events that end so without an attempt are dead letters."""
        kept = {"error": self.filter_errors_kept, "expired": self.expired_kept}
        return self.has_sink and kept.get(result, False)


@dataclass(frozen=True, slots=True)
class PullRules:
    """How consumers share a subscription.

    Attributes:
        type: `exclusive`: one consumer, others are refused; `failover`: one, the next takes over; `shared`: each gets
            other events; `keyShared`: each gets other partition keys, the events of one in order.
        ack_timeout_s: Seconds until an event that is not acknowledged is handed out again.
        history: From where on the filter counts: `beginning` or a position; empty: from when it is in force.
        filter_id: Another one for every filter and history as they are written.
        max_deliveries: How often an event is handed out at most; None for no bound.
    """

    type: PullType = "exclusive"
    ack_timeout_s: float = limits.ACK_TIMEOUT_S_DEFAULT
    history: str = ""
    filter_id: str = ""
    max_deliveries: int | None = None

    @property
    def shares_keys(self) -> bool:
        """Whether the events of a partition key go to one consumer at a time, in order."""
        return self.type == "keyShared"


@dataclass(frozen=True, slots=True)
class Target:
    """A trigger or a subscription as the matcher and the dispatcher see it.

    Attributes:
        id: int32 above 0, never used for another object; kept when the object changes.
        name: `namespace/name`; a trigger and a subscription may have the same.
        broker: Identity of the broker whose events it gets (`event.names`); it need not exist (then no event comes).
        subscriber_uri: Absolute http or https URL; empty for a subscription.
        delivery: Complete rules: its own, else those of its broker, else defaults; for a subscription, of dead letters.
        pull: Of a subscription: its events stay in the outbox until consumers come. None for a trigger.
        needs: The generation that first held its filter.
        subscriber_ca: CA of the subscriber's host, as PEM, beside the system's; empty for none.
        subscriber_audience: Of the tokens that requests to the subscriber carry; empty for none.
        transform: CEL that builds the event to be sent (`filter/cel/transform.py`); empty: as it is stored.
    """

    id: int
    name: str
    broker: str
    filter: CompiledFilter
    subscriber_uri: str
    delivery: DeliveryRules
    pull: PullRules | None = None
    needs: int = 0
    subscriber_ca: str = ""
    subscriber_audience: str = ""
    paused: bool = False
    transform: str = ""

    @property
    def namespace(self) -> str:
        """The first part of its name, where its Secrets are."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class RoutingStep:
    """Ids of the targets that a table changed, added or lost from version `since` to the next one."""

    since: int
    changed: frozenset[int]


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Everything routed, at one moment.

    Attributes:
        generation: Version of the set of filters (id, broker, filter): what a matcher that was built from this table
            announces by `CounterTable.activate`. A change of subscriber or delivery does not move it.
        version: Version of the whole table: moves with every change of anything in it.
        brokers: Identities of the brokers that accept events, by `namespace/name`.
        targets: Triggers whose subscriber has an address, and subscriptions, by id.
        plans_outdated: How many of them have a plan of another version: its rows leave every event to cel-cpp until
            the front has compiled the filter anew.
        steps: The last changes that led to it, the newest last.
    """

    generation: int
    version: int
    brokers: Mapping[str, str]
    targets: Mapping[int, Target]
    plans_outdated: int = 0
    steps: tuple[RoutingStep, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, generation: int, version: int, brokers: Mapping[str, str], targets: Iterable[Target]) -> RoutingTable:
        """A table that knows nothing of earlier ones."""
        return cls(generation, version, brokers, {target.id: target for target in targets})

    def trigger(self, name: str) -> Target | None:
        """A trigger by `namespace/name`."""
        return next((one for one in self.targets.values() if one.name == name and one.pull is None), None)

    def changed_since(self, before: RoutingTable | None) -> Set[int]:
        """Ids of targets that may be others than in an earlier table of the same store, or be in one of them alone."""
        if before is None:
            return self.targets.keys()
        if before is self:
            return frozenset()
        for number, step in enumerate(self.steps):
            if step.since == before.version:
                return frozenset().union(*(later.changed for later in self.steps[number:]))
        return self.targets.keys() | before.targets.keys()


@dataclass(frozen=True, slots=True)
class TargetReport:
    """What a dispatcher saw of a target since its last report: counts are increments, None is for as before."""

    target: int
    filter_errors: int
    last_error: str
    last_error_event: str
    trouble: str | None = None
    dropped: int = 0
    last_dropped: str = ""
    backlog: str | None = None


class TargetFindings(msgspec.Struct, frozen=True):
    """What was seen of a target with its filter so far: all of its reports in one.

    `last_error` is the message of the last of the `filter_errors`, `last_error_event` its event's `source` and `id` as
    one text. `trouble` says what is wrong with the subscriber now, `backlog` what with the backlog, as "Reason:
    message", empty for nothing. `dropped` counts events that were given up and are kept nowhere, and `last_dropped`
    says which the last was, and why.
    """

    filter_errors: int = 0
    last_error: str = ""
    last_error_event: str = ""
    trouble: str = ""
    dropped: int = 0
    last_dropped: str = ""
    backlog: str = ""

    def plus(self, report: TargetReport) -> TargetFindings:
        """These and a newer report; an empty error keeps the last one. Texts are cut at REPORT_TEXT_CHARACTERS_MAX."""
        is_error, is_drop = bool(report.last_error), bool(report.dropped)
        return TargetFindings(
            filter_errors=self.filter_errors + report.filter_errors,
            last_error=_cut(report.last_error if is_error else self.last_error),
            last_error_event=_cut(report.last_error_event if is_error else self.last_error_event),
            trouble=_cut(self.trouble if report.trouble is None else report.trouble),
            dropped=self.dropped + report.dropped,
            last_dropped=_cut(report.last_dropped if is_drop else self.last_dropped),
            backlog=_cut(self.backlog if report.backlog is None else report.backlog),
        )


def _cut(text: str) -> str:
    return text[: limits.REPORT_TEXT_CHARACTERS_MAX]


NOTHING_FOUND: Final = TargetFindings()
"""What is known of an object about which no dispatcher has reported."""
FINDINGS: Final = TargetFindings.__struct_fields__
"""Names of what is found, which are columns."""


class ToldFindings(TargetFindings, frozen=True, kw_only=True):
    """Findings that come from elsewhere, with the generation that first held the filter by which they were found."""

    needs: int
