"""How is an event delivered? `spec.delivery` with units and defaults."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from headgate.control.durations import duration_s
from headgate.control.errors import Cause, invalid
from headgate.control.objects import ORDER_ANNOTATION, ORDER_ANNOTATION_KAFKA, Delivery, Metadata
from headgate.control.routing import BackoffPolicy, DeliverySpec
from headgate.limits import BACKOFF_SECONDS_MAX, RETRY_MAX, TIMEOUT_SECONDS_MAX

DEFAULT_RETRY: Final = 10
DEFAULT_BACKOFF_POLICY: Final[BackoffPolicy] = "exponential"
DEFAULT_BACKOFF_DELAY: Final = "PT0.2S"
"""Knative's own defaults for brokers: ten retries, exponential, 0.2 s: the last one after about 3.5 minutes."""
DEFAULT_TIMEOUT: Final = "PT30S"
_POLICIES: Final[dict[str, BackoffPolicy]] = {"linear": "linear", "exponential": "exponential"}
_ORDERS: Final = {"ordered": True, "unordered": False}


def delivery_causes(delivery: Delivery | None) -> Iterator[Cause]:
    """What is wrong with a `spec.delivery`."""
    if delivery is None:
        return
    at = "spec.delivery"
    if delivery.retry is not None and not 0 <= delivery.retry <= RETRY_MAX:
        yield invalid(f"{at}.retry", delivery.retry, f"must be between 0 and {RETRY_MAX}")
    if delivery.backoff_policy and delivery.backoff_policy not in _POLICIES:
        detail = f'Unsupported value: "{delivery.backoff_policy}": supported values: "exponential", "linear"'
        yield Cause(f"{at}.backoffPolicy", "FieldValueNotSupported", detail)
    yield from _duration_causes(f"{at}.backoffDelay", delivery.backoff_delay, BACKOFF_SECONDS_MAX, zero=True)
    yield from _duration_causes(f"{at}.timeout", delivery.timeout, TIMEOUT_SECONDS_MAX, zero=False)


def _duration_causes(field: str, text: str, seconds_max: int, *, zero: bool) -> Iterator[Cause]:
    if not text:
        return
    try:
        seconds = duration_s(text)
    except ValueError as error:
        yield invalid(field, text, str(error))
        return
    if seconds > seconds_max or (seconds == 0 and not zero):
        yield invalid(field, text, f"must be {'at most' if zero else 'above zero and at most'} {seconds_max} s")


def order_causes(metadata: Metadata) -> Iterator[Cause]:
    """What is wrong with the annotations that ask for order."""
    for annotation in (ORDER_ANNOTATION, ORDER_ANNOTATION_KAFKA):
        value = metadata.annotations.get(annotation)
        if value is not None and value not in _ORDERS:
            detail = f'Unsupported value: "{value}": supported values: "ordered", "unordered"'
            yield Cause(f"metadata.annotations[{annotation}]", "FieldValueNotSupported", detail)


def is_ordered(metadata: Metadata) -> bool:
    """Whether a trigger asked for its events one after the other."""
    annotations = metadata.annotations
    return _ORDERS.get(annotations.get(ORDER_ANNOTATION, annotations.get(ORDER_ANNOTATION_KAFKA, "")), False)


@functools.lru_cache(maxsize=1024)
def resolve(trigger: Delivery | None, broker: Delivery | None, *, ordered: bool) -> DeliverySpec:
    """The rules in force: the trigger's as a whole, else the broker's as a whole; what neither says has a default.

    Args:
        trigger: `spec.delivery` of the trigger, validated.
        broker: `spec.delivery` of its broker, validated.
        ordered: Whether the trigger asked for order.

    Returns:
        Complete rules, in seconds.
    """
    chosen = trigger if trigger is not None else broker if broker is not None else Delivery()
    return DeliverySpec(
        retry=DEFAULT_RETRY if chosen.retry is None else chosen.retry,
        backoff_policy=_POLICIES.get(chosen.backoff_policy, DEFAULT_BACKOFF_POLICY),
        backoff_delay_s=duration_s(chosen.backoff_delay or DEFAULT_BACKOFF_DELAY),
        timeout_s=duration_s(chosen.timeout or DEFAULT_TIMEOUT),
        ordered=ordered,
    )
