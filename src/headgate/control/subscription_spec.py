"""A subscription's spec with types, defaults and tags, and the filters that the compiler gets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headgate.control.delivery_spec import delivery_causes
from headgate.control.durations import duration_s
from headgate.control.errors import Cause, forbidden, invalid, not_between, not_one_of
from headgate.control.objects import DeliverySpec, JsonObject, Routed, Subscription, SubscriptionSpec
from headgate.control.routing import PullRules, PullType
from headgate.filter.dialects.consumer_metadata import consumer_filter
from headgate.limits import (
    ACK_TIMEOUT_S_DEFAULT,
    ACK_TIMEOUT_S_MAX,
    ACK_TIMEOUT_S_MIN,
    CONSUMER_METADATA_MAX,
    MAX_DELIVERIES_MAX,
)
from headgate.log import positions
from headgate.log.errors import PositionError

TYPE_DEFAULT: Final = "exclusive"
_PUSHED: Final = ("order", "parallelism", "batch_size", "batch_wait", "on_filter_error", "rate_limit")
"""Fields of `spec.delivery` that say how a trigger's events go out."""
_NOTHING: Final = DeliverySpec()
_ID_CHARS: Final = 16
_TYPES: Final[dict[str, PullType]] = {"exclusive": "exclusive", "failover": "failover", "shared": "shared"}
_NOW: Final = "now"
_BEGINNING: Final = "beginning"


def pull_rules(obj: Subscription) -> PullRules:
    """The rules of a valid subscription."""
    spec = obj.spec
    history = "" if spec.filter_from == _NOW else spec.filter_from
    written = msgspec.json.encode((*compiler_input(obj), history), order="sorted")
    return PullRules(
        _TYPES[spec.type or TYPE_DEFAULT],
        duration_s(spec.ack_timeout) if spec.ack_timeout else ACK_TIMEOUT_S_DEFAULT,
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
    if spec.ack_timeout:
        try:
            seconds = duration_s(spec.ack_timeout)
        except ValueError as error:
            yield invalid("spec.ackTimeout", spec.ack_timeout, str(error))
        else:
            if not ACK_TIMEOUT_S_MIN <= seconds <= ACK_TIMEOUT_S_MAX:
                detail = f"must be between {ACK_TIMEOUT_S_MIN:.0f} s and {ACK_TIMEOUT_S_MAX:.0f} s"
                yield invalid("spec.ackTimeout", spec.ack_timeout, detail)
    yield from not_between("spec.maxDeliveries", spec.max_deliveries, 1, MAX_DELIVERIES_MAX)
    yield from delivery_causes(spec.delivery)
    for name in _PUSHED:
        if spec.delivery is not None and getattr(spec.delivery, name) != getattr(_NOTHING, name):
            field = f"spec.delivery.{name.split('_')[0]}{''.join(map(str.capitalize, name.split('_')[1:]))}"
            yield forbidden(field, "has no meaning for a subscription, whose consumers come for the events")
    if len(spec.consumer_metadata) > CONSUMER_METADATA_MAX:
        detail = f"must have at most {CONSUMER_METADATA_MAX} names"
        yield invalid("spec.consumerMetadata", len(spec.consumer_metadata), detail)


def compiler_input(obj: Routed) -> tuple[JsonObject | None, Sequence[JsonObject]]:
    """What the compiler is given: the filters as written, and what consumer metadata asks for beside them.

    Raises:
        FilterError: The consumer filter refuses the metadata.
    """
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
