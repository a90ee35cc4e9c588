"""What do the other rooms see of the objects? Who gets what, without Kubernetes' shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headgate.filter.plan import CompiledFilter

BackoffPolicy = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class DeliverySpec:
    """How events go to a target.

    Attributes:
        retry: Attempts after the first one.
        backoff_policy: Wait before the n-th retry, n from 1: `linear` delay x n, `exponential` delay x 2^n (Knative).
        backoff_delay_s: Seconds.
        timeout_s: Seconds for one attempt.
        ordered: One event at a time, in the order of the log.
    """

    retry: int
    backoff_policy: BackoffPolicy
    backoff_delay_s: float
    timeout_s: float
    ordered: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A trigger as the matcher and the dispatcher see it.

    Attributes:
        id: int32 above 0, never used for another trigger; kept when the trigger changes.
        name: `namespace/trigger`.
        broker: `namespace/broker`; the broker need not exist (then no event comes).
        filter: Compiled at admission.
        subscriber_uri: Absolute http or https URL.
        delivery: Complete rules: the trigger's, else the broker's, else defaults.
    """

    id: int
    name: str
    broker: str
    filter: CompiledFilter
    subscriber_uri: str
    delivery: DeliverySpec


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Everything routed, at one moment.

    Attributes:
        generation: Version of the set of filters (id, broker, filter): what a matcher that was built from this table
            announces by `Store.set_active_generation`. A change of subscriber or delivery does not move it.
        version: Version of the whole table: moves with every change of anything in it.
        brokers: `namespace/name` of the brokers that accept events.
        targets: Triggers whose subscriber has an address, ordered by id.
    """

    generation: int
    version: int
    brokers: frozenset[str]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class TargetReport:
    """What the dispatcher saw of a target's filter since its last report.

    Attributes:
        target: The target's id.
        filter_errors: Events whose evaluation was an error since the last report: an increment, which the store
            adds up.
        last_error: Message of the last of them.
        last_error_event: `source` and `id` of that event, as one text.
    """

    target: int
    filter_errors: int
    last_error: str
    last_error_event: str
