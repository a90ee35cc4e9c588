"""The parts of a spec that kinds share, with types and defaults: `spec.log`, `spec.delivery`, and a subscription's."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import msgspec

from headgate.filter.cel.errors import FilterError
from headgate.filter.dialects.custom import consumer_filter
from headgate.filter.skipping.prune import DEFAULT, FilterValueRule, filter_value_rule
from headgate.log.format import Codec
from headgate.objects.kinds.routing import BackoffPolicy, DeliveryRules, Format, PullRules, PullType
from headgate_api import limits, positions
from headgate_api.objects.errors import Cause, forbidden, invalid, not_between, not_one_of, required, too_many
from headgate_api.objects.kinds import (
    ORDER_ANNOTATION,
    ORDER_ANNOTATION_KAFKA,
    PAUSED_ANNOTATION,
    DeduplicationSpec,
    DeliverySpec,
    JsonObject,
    LogSpec,
    Metadata,
    Routed,
    Subscription,
    SubscriptionSpec,
    Trigger,
)
from headgate_api.objects.metadata import duration_s
from headgate_api.positions import PositionError

# --- log spec -------------------------------------------------------------------------------------

_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


@dataclass(frozen=True, slots=True)
class LogRule:
    """What a broker asks of the chunks that hold its events.

    `value` is how events get their filter values, `bloom_bytes` the size of the Bloom filter, 16..255, `retention_us`
    how long events are seen, microseconds; None: as long as they are in the log. Of events with the same source and id
    within `window_us`, microseconds, the first one is stored; 0: all.
    """

    value: FilterValueRule
    bloom_bytes: int = limits.BLOOM_BYTES_MIN
    codec: Codec = Codec.NONE
    retention_us: int | None = None
    window_us: int = 0


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """A broker that accepts events; `identity` is what they are stored with, see `event.names`."""

    identity: str
    rule: LogRule


DEFAULT_RULE: Final = LogRule(filter_value_rule(DEFAULT))


def log_rule(spec: LogSpec | None, deduplication: DeduplicationSpec | None = None) -> LogRule:
    """The rule of a valid `spec.log` and `spec.deduplication`."""
    if spec is None and deduplication is None:
        return DEFAULT_RULE
    spec = spec or LogSpec()
    return LogRule(
        filter_value_rule(spec.filter_value or DEFAULT),
        spec.filter_size_bytes or limits.BLOOM_BYTES_MIN,
        _CODECS[spec.compression or "none"],
        retention_us(spec),
        int(duration_s(deduplication.window) * 1_000_000) if deduplication is not None else 0,
    )


def deduplication_causes(spec: DeduplicationSpec | None) -> Iterator[Cause]:
    """What is wrong with a `spec.deduplication`."""
    if spec is None:
        return
    low_s, high_s = limits.DEDUPLICATION_WINDOW_S_MIN, limits.DEDUPLICATION_WINDOW_S_MAX
    between = f"must be between {low_s:g} and {high_s:.0f} s"
    if not spec.window:
        yield required("spec.deduplication.window", "an ISO 8601 duration, such as PT10M")
    yield from _duration_causes("spec.deduplication.window", spec.window, low_s, high_s, between)


def retention_us(spec: LogSpec | None) -> int | None:
    """How long events are seen by a valid `spec.log`, microseconds; None: as long as they are in the log."""
    return int(duration_s(spec.retention) * 1_000_000) if spec is not None and spec.retention else None


def log_causes(spec: LogSpec | None) -> Iterator[Cause]:
    """What is wrong with a `spec.log`."""
    if spec is None:
        return
    least, most = limits.BLOOM_BYTES_MIN, limits.BLOOM_BYTES_MAX
    yield from not_between("spec.log.filterSizeBytes", spec.filter_size_bytes, least, most)
    yield from not_one_of("spec.log.compression", spec.compression or None, _CODECS)
    low_s, high_s = limits.BROKER_RETENTION_S_MIN, limits.BROKER_RETENTION_S_MAX
    between = f"must be between {low_s:g} and {high_s:.0f} s"
    yield from _duration_causes("spec.log.retention", spec.retention, low_s, high_s, between)
    if spec.filter_value:
        try:
            filter_value_rule(spec.filter_value)
        except FilterError as error:
            yield invalid("spec.log.filterValue", spec.filter_value, error.message)


def filter_value_causes(old: LogSpec | None, new: LogSpec | None) -> Iterator[Cause]:
    """A broker's rule never changes: readers skip chunks by it. A broker that is created again is another one."""
    before, after = ((spec or LogSpec()).filter_value or DEFAULT for spec in (old, new))
    if before != after:
        yield invalid("spec.log.filterValue", after, "field is immutable")


# --- delivery spec --------------------------------------------------------------------------------

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
_KEPT: Final = {"drop": False, "deadLetter": True}


def delivery_causes(delivery: DeliverySpec | None) -> Iterator[Cause]:
    """What is wrong with a `spec.delivery`."""
    if delivery is None:
        return
    at = "spec.delivery"
    yield from not_between(f"{at}.retry", delivery.retry, 0, limits.RETRY_MAX)
    yield from not_one_of(f"{at}.backoffPolicy", delivery.backoff_policy or None, _POLICIES)
    yield from not_one_of(f"{at}.format", delivery.format or None, _FORMATS)
    yield from not_one_of(f"{at}.order", delivery.order or None, _ORDERS)
    yield from not_one_of(f"{at}.onFilterError", delivery.on_filter_error or None, _KEPT)
    yield from not_one_of(f"{at}.onExpired", delivery.on_expired or None, _KEPT)
    yield from not_between(f"{at}.parallelism", delivery.parallelism, 1, limits.PARALLELISM_MAX)
    yield from not_between(f"{at}.batchSize", delivery.batch_size, 1, limits.BATCH_SIZE_MAX)
    least, most_per_s = limits.RATE_PER_S_MIN, limits.RATE_PER_S_MAX
    yield from not_between(f"{at}.rateLimit", delivery.rate_limit, least, most_per_s, " a second")
    for field, text in (("batchSize", delivery.batch_size), ("batchWait", delivery.batch_wait)):
        if text and delivery.format != "batch":
            yield invalid(f"{at}.{field}", text, 'has a meaning only with format "batch"')
    for field, text, low_s, most in (
        ("backoffDelay", delivery.backoff_delay, 0, limits.BACKOFF_SECONDS_MAX),
        ("timeout", delivery.timeout, sys.float_info.min, limits.TIMEOUT_SECONDS_MAX),
        ("retryAfterMax", delivery.retry_after_max, 0, limits.BACKOFF_SECONDS_MAX),
        ("batchWait", delivery.batch_wait, 0, limits.BATCH_WAIT_SECONDS_MAX),
        ("ttl", delivery.ttl, sys.float_info.min, limits.TTL_SECONDS_MAX),
        ("delay", delivery.delay, 0, limits.PENDING_SECONDS_MAX),
    ):
        rule = f"must be {'above zero and ' if low_s else ''}at most {most} s"
        yield from _duration_causes(f"{at}.{field}", text, low_s, most, rule)


def _duration_causes(field: str, text: str, low_s: float, high_s: float, rule: str) -> Iterator[Cause]:
    """A cause when a text, which may be empty, is no duration or lies outside of its bounds."""
    try:
        if text and not low_s <= duration_s(text) <= high_s:
            yield invalid(field, text, rule)
    except ValueError as error:
        yield invalid(field, text, str(error))


def annotation_causes(metadata: Metadata) -> Iterator[Cause]:
    """What is wrong with the annotations that ask for order, or pause a trigger."""
    for name, known in ((ORDER_ANNOTATION, _ORDERS), (ORDER_ANNOTATION_KAFKA, _ORDERS), (PAUSED_ANNOTATION, _PAUSED)):
        yield from not_one_of(f"metadata.annotations[{name}]", metadata.annotations.get(name), known)


def is_ordered(metadata: Metadata) -> bool:
    """Whether a trigger's annotations order its events."""
    annotations = metadata.annotations
    return _ORDERS.get(annotations.get(ORDER_ANNOTATION, annotations.get(ORDER_ANNOTATION_KAFKA, "")), False)


def keeps_order(obj: Routed, inherited: str = "") -> bool:
    """Whether an object's events come in order: of an ordered trigger, of a subscription with one consumer at a time.

    `inherited` is `order` in the delivery rules of the broker, for a trigger without rules.
    """
    if isinstance(obj, Subscription):
        return (obj.spec.type or TYPE_DEFAULT) != "shared"
    order = inherited if obj.spec.delivery is None else obj.spec.delivery.order
    return _ORDERS[order] if order else is_ordered(obj.metadata)


def order_warning(obj: Routed) -> tuple[str, ...]:
    """What an ordered trigger does not get, though its author may expect it."""
    if isinstance(obj, Trigger) and keeps_order(obj):
        return ("only events with the same partitionkey are kept in order: those without one come in any order",)
    return ()


def is_paused(metadata: Metadata) -> bool:
    """Whether a trigger's annotations let its events wait."""
    return _PAUSED.get(metadata.annotations.get(PAUSED_ANNOTATION, ""), False)


def keeps_filter_errors(delivery: DeliverySpec | None) -> bool:
    """Whether events for which the filter is an error shall be dead letters: its plan must name them then."""
    return delivery is not None and _KEPT.get(delivery.on_filter_error, False)


@functools.lru_cache(maxsize=1024)
def delivery_rules(chosen: DeliverySpec | None, *, ordered: bool, dead_letter_uri: str | None = None) -> DeliveryRules:
    """Complete rules, in seconds, by a validated `spec.delivery`: the trigger's, else its broker's, as a whole.

    `ordered` says that the trigger has the annotation for order; `order` counts more. `dead_letter_uri` is None without
    a `deadLetterSink`, empty when that has no address.
    """
    chosen = chosen if chosen is not None else DeliverySpec()
    is_batch = chosen.format == "batch"
    return DeliveryRules(
        retry=chosen.retry,
        backoff_policy=_POLICIES.get(chosen.backoff_policy, DEFAULT_BACKOFF_POLICY),
        backoff_delay_s=duration_s(chosen.backoff_delay or DEFAULT_BACKOFF_DELAY),
        timeout_s=duration_s(chosen.timeout or DEFAULT_TIMEOUT),
        ordered=_ORDERS[chosen.order] if chosen.order else ordered,
        retry_after_max_s=duration_s(chosen.retry_after_max)
        if chosen.retry_after_max
        else float(limits.BACKOFF_SECONDS_MAX),
        format=_FORMATS.get(chosen.format, "binary"),
        dead_letter_uri=dead_letter_uri,
        parallelism=limits.TARGET_PARALLEL_DEFAULT if chosen.parallelism is None else chosen.parallelism,
        batch_size=(chosen.batch_size or DEFAULT_BATCH_SIZE) if is_batch else 1,
        batch_wait_s=duration_s(chosen.batch_wait or DEFAULT_BATCH_WAIT) if is_batch else 0.0,
        rate_per_s=chosen.rate_limit,
        filter_errors_kept=_KEPT.get(chosen.on_filter_error, False),
        ttl_us=int(duration_s(chosen.ttl) * 1e6) if chosen.ttl else None,
        delay_us=int(duration_s(chosen.delay) * 1e6) if chosen.delay else 0,
        expired_kept=_KEPT.get(chosen.on_expired, False),
        auth=chosen.auth,
        dead_letter_auth=chosen.dead_letter_auth,
        handshake=chosen.handshake,
        dead_letter_ca=chosen.dead_letter_sink.ca_certs if chosen.dead_letter_sink is not None else "",
        dead_letter_audience=chosen.dead_letter_sink.audience if chosen.dead_letter_sink is not None else "",
    )


# --- subscription spec ----------------------------------------------------------------------------

TYPE_DEFAULT: Final = "exclusive"
_PUSHED: Final = (
    "order",
    "parallelism",
    "batch_size",
    "batch_wait",
    "on_filter_error",
    "ttl",
    "delay",
    "on_expired",
    "rate_limit",
)
"""Fields of `spec.delivery` that say how a trigger's events go out."""
_ID_CHARS: Final = 16
_TYPES: Final[dict[str, PullType]] = {one: one for one in get_args(PullType)}
_NOW: Final = "now"
_BEGINNING: Final = "beginning"


def pull_rules(obj: Subscription) -> PullRules:
    """The rules of a valid subscription."""
    spec = obj.spec
    history = "" if spec.filter_from == _NOW else spec.filter_from
    written = msgspec.json.encode((*compiler_input(obj), history), order="sorted")
    return PullRules(
        _TYPES[spec.type or TYPE_DEFAULT],
        duration_s(spec.ack_timeout) if spec.ack_timeout else limits.ACK_TIMEOUT_S_DEFAULT,
        history,
        hashlib.sha256(written).hexdigest()[:_ID_CHARS],
        spec.max_deliveries,
    )


def pull_causes(spec: SubscriptionSpec) -> Iterator[Cause]:
    """What is wrong with how a subscription is to be consumed."""
    yield from not_one_of("spec.type", spec.type or None, _TYPES)
    if spec.filter_from not in ("", _NOW, _BEGINNING):
        try:
            positions.parse(spec.filter_from)
        except PositionError:
            detail = 'must be "now", "beginning" or a position such as "0:123,1:456"'
            yield invalid("spec.filterFrom", spec.filter_from[:64], detail)
    low_s, high_s = limits.ACK_TIMEOUT_S_MIN, limits.ACK_TIMEOUT_S_MAX
    between = f"must be between {low_s:.0f} s and {high_s:.0f} s"
    yield from _duration_causes("spec.ackTimeout", spec.ack_timeout, low_s, high_s, between)
    yield from not_between("spec.maxDeliveries", spec.max_deliveries, 1, limits.MAX_DELIVERIES_MAX)
    yield from delivery_causes(spec.delivery)
    for field in msgspec.structs.fields(DeliverySpec):
        if field.name in _PUSHED and spec.delivery is not None and getattr(spec.delivery, field.name) != field.default:
            detail = "has no meaning for a subscription, whose consumers come for the events"
            yield forbidden(f"spec.delivery.{field.encode_name}", detail)
    yield from too_many("spec.consumerMetadata", len(spec.consumer_metadata), limits.CONSUMER_METADATA_MAX, "names")


def compiler_input(obj: Routed) -> tuple[JsonObject | None, Sequence[JsonObject]]:
    """The filters as written, and what consumer metadata asks for; FilterError when the consumer filter refuses it."""
    spec = obj.spec
    tags: JsonObject | None = None
    if isinstance(obj, Subscription):
        tags = consumer_filter(obj.spec.consumer_filter, obj.spec.consumer_metadata)
    if tags is None:
        return spec.filter, spec.filters
    written = spec.filters or ((spec.filter,) if spec.filter else ())
    return None, (*written, tags)


def field_as_written(obj: Routed, field: str) -> str:
    """The field below `spec` that the compiler's word for a place of `compiler_input` means."""
    if field.startswith("consumer"):
        return field
    filters = compiler_input(obj)[1]
    if filters is obj.spec.filters:
        return field
    last = f"filters[{len(filters) - 1}]."
    if field.startswith(last):
        rest = field[len(last) :]
        return f"consumerMetadata{rest.removeprefix('tags').removeprefix('cel')}"
    return field if obj.spec.filters else field.replace("filters[0]", "filter", 1)
