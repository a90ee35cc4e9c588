"""`spec.delivery`: its rules, units and defaults."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from headgate.control.durations import duration_s
from headgate.control.errors import Cause, invalid, not_between, not_one_of
from headgate.control.objects import (
    ORDER_ANNOTATION,
    ORDER_ANNOTATION_KAFKA,
    PAUSED_ANNOTATION,
    DeliverySpec,
    Metadata,
)
from headgate.control.routing import BackoffPolicy, DeliveryRules, Format
from headgate.limits import (
    BACKOFF_SECONDS_MAX,
    BATCH_SIZE_MAX,
    BATCH_WAIT_SECONDS_MAX,
    PARALLELISM_MAX,
    RATE_PER_S_MAX,
    RATE_PER_S_MIN,
    RETRY_MAX,
    TARGET_PARALLEL_DEFAULT,
    TIMEOUT_SECONDS_MAX,
)

DEFAULT_BACKOFF_POLICY: Final[BackoffPolicy] = "exponential"
DEFAULT_BACKOFF_DELAY: Final = "PT0.2S"
"""Knative's own defaults for brokers: exponential, 0.2 s."""
DEFAULT_TIMEOUT: Final = "PT30S"
DEFAULT_BATCH_SIZE: Final = 100
DEFAULT_BATCH_WAIT: Final = "PT0.1S"
_POLICIES: Final[dict[str, BackoffPolicy]] = {"linear": "linear", "exponential": "exponential"}
_ORDERS: Final = {"ordered": True, "unordered": False}
_PAUSED: Final = {"true": True, "false": False}
_FORMATS: Final[dict[str, Format]] = {"binary": "binary", "json": "json", "batch": "batch"}
_ON_FILTER_ERROR: Final = {"drop": False, "deadLetter": True}


def delivery_causes(delivery: DeliverySpec | None) -> Iterator[Cause]:
    """What is wrong with a `spec.delivery`."""
    if delivery is None:
        return
    at = "spec.delivery"
    yield from not_between(f"{at}.retry", delivery.retry, 0, RETRY_MAX)
    yield from not_one_of(f"{at}.backoffPolicy", delivery.backoff_policy or None, _POLICIES)
    yield from not_one_of(f"{at}.format", delivery.format or None, _FORMATS)
    yield from not_one_of(f"{at}.order", delivery.order or None, _ORDERS)
    yield from not_one_of(f"{at}.onFilterError", delivery.on_filter_error or None, _ON_FILTER_ERROR)
    yield from not_between(f"{at}.parallelism", delivery.parallelism, 1, PARALLELISM_MAX)
    yield from not_between(f"{at}.batchSize", delivery.batch_size, 1, BATCH_SIZE_MAX)
    yield from not_between(f"{at}.rateLimit", delivery.rate_limit, RATE_PER_S_MIN, RATE_PER_S_MAX, " a second")
    for field, text in (("batchSize", delivery.batch_size), ("batchWait", delivery.batch_wait)):
        if text and delivery.format != "batch":
            yield invalid(f"{at}.{field}", text, 'has a meaning only with format "batch"')
    yield from _duration_causes(f"{at}.backoffDelay", delivery.backoff_delay, BACKOFF_SECONDS_MAX, zero=True)
    yield from _duration_causes(f"{at}.timeout", delivery.timeout, TIMEOUT_SECONDS_MAX, zero=False)
    yield from _duration_causes(f"{at}.retryAfterMax", delivery.retry_after_max, BACKOFF_SECONDS_MAX, zero=True)
    yield from _duration_causes(f"{at}.batchWait", delivery.batch_wait, BATCH_WAIT_SECONDS_MAX, zero=True)


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
        yield from not_one_of(f"metadata.annotations[{annotation}]", metadata.annotations.get(annotation), _ORDERS)


def is_ordered(metadata: Metadata) -> bool:
    """Whether a trigger's annotations order its events."""
    annotations = metadata.annotations
    return _ORDERS.get(annotations.get(ORDER_ANNOTATION, annotations.get(ORDER_ANNOTATION_KAFKA, "")), False)


def paused_causes(metadata: Metadata) -> Iterator[Cause]:
    """What is wrong with the annotation that pauses a trigger."""
    yield from not_one_of(
        f"metadata.annotations[{PAUSED_ANNOTATION}]", metadata.annotations.get(PAUSED_ANNOTATION), _PAUSED
    )


def is_paused(metadata: Metadata) -> bool:
    """Whether a trigger's annotations let its events wait."""
    return _PAUSED.get(metadata.annotations.get(PAUSED_ANNOTATION, ""), False)


def keeps_filter_errors(delivery: DeliverySpec | None) -> bool:
    """Whether events for which the filter is an error shall be dead letters: its plan must name them then."""
    return delivery is not None and _ON_FILTER_ERROR.get(delivery.on_filter_error, False)


@functools.lru_cache(maxsize=1024)
def delivery_rules(chosen: DeliverySpec | None, *, ordered: bool, dead_letter_uri: str | None = None) -> DeliveryRules:
    """Complete rules, in seconds; what is left out has a default.

    Args:
        chosen: `spec.delivery` of the trigger, else of its broker, as a whole; validated.
        ordered: Whether the trigger has the annotation for order; `order` counts more.
        dead_letter_uri: Where its `deadLetterSink` is; None when it has none, empty when that has no address.
    """
    chosen = chosen if chosen is not None else DeliverySpec()
    is_batch = chosen.format == "batch"
    return DeliveryRules(
        retry=chosen.retry,
        backoff_policy=_POLICIES.get(chosen.backoff_policy, DEFAULT_BACKOFF_POLICY),
        backoff_delay_s=duration_s(chosen.backoff_delay or DEFAULT_BACKOFF_DELAY),
        timeout_s=duration_s(chosen.timeout or DEFAULT_TIMEOUT),
        ordered=_ORDERS[chosen.order] if chosen.order else ordered,
        retry_after_max_s=duration_s(chosen.retry_after_max) if chosen.retry_after_max else float(BACKOFF_SECONDS_MAX),
        format=_FORMATS.get(chosen.format, "binary"),
        dead_letter_uri=dead_letter_uri,
        parallelism=TARGET_PARALLEL_DEFAULT if chosen.parallelism is None else chosen.parallelism,
        batch_size=(chosen.batch_size or DEFAULT_BATCH_SIZE) if is_batch else 1,
        batch_wait_s=duration_s(chosen.batch_wait or DEFAULT_BATCH_WAIT) if is_batch else 0.0,
        rate_per_s=chosen.rate_limit,
        filter_errors_kept=_ON_FILTER_ERROR.get(chosen.on_filter_error, False),
        auth=chosen.auth,
        dead_letter_auth=chosen.dead_letter_auth,
        handshake=chosen.handshake,
        dead_letter_ca=chosen.dead_letter_sink.ca_certs if chosen.dead_letter_sink is not None else "",
        dead_letter_audience=chosen.dead_letter_sink.audience if chosen.dead_letter_sink is not None else "",
    )
