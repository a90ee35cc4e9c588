"""How is a subscription consumed, and what does it want? Its spec with types, defaults and tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headgate.control.durations import duration_s
from headgate.control.errors import Cause, invalid
from headgate.control.objects import JsonObject, Routed, Subscription, SubscriptionSpec
from headgate.control.routing import PullSpec, PullType
from headgate.filter.dialects.tags import tags_of
from headgate.limits import (
    ACK_TIMEOUT_S_DEFAULT,
    ACK_TIMEOUT_S_MAX,
    ACK_TIMEOUT_S_MIN,
    CONSUMER_METADATA_MAX,
)

TYPE_DEFAULT: Final = "exclusive"
_TYPES: Final[dict[str, PullType]] = {"exclusive": "exclusive", "failover": "failover", "shared": "shared"}
_FROM: Final = frozenset({"now"})


def pull_spec(spec: SubscriptionSpec) -> PullSpec:
    """The rules of a valid subscription."""
    return PullSpec(
        _TYPES[spec.type or TYPE_DEFAULT],
        duration_s(spec.ack_timeout) if spec.ack_timeout else ACK_TIMEOUT_S_DEFAULT,
    )


def pull_causes(spec: SubscriptionSpec) -> Iterator[Cause]:
    """What is wrong with how a subscription is to be consumed."""
    for field, value, known in (("type", spec.type, _TYPES), ("filterFrom", spec.filter_from, _FROM)):
        if value and value not in known:
            supported = ", ".join(f'"{name}"' for name in sorted(known))
            detail = f'Unsupported value: "{value}": supported values: {supported}'
            yield Cause(f"spec.{field}", "FieldValueNotSupported", detail)
    if spec.ack_timeout:
        try:
            seconds = duration_s(spec.ack_timeout)
        except ValueError as error:
            yield invalid("spec.ackTimeout", spec.ack_timeout, str(error))
        else:
            if not ACK_TIMEOUT_S_MIN <= seconds <= ACK_TIMEOUT_S_MAX:
                detail = f"must be between {ACK_TIMEOUT_S_MIN:.0f} s and {ACK_TIMEOUT_S_MAX:.0f} s"
                yield invalid("spec.ackTimeout", spec.ack_timeout, detail)
    if len(spec.consumer_metadata) > CONSUMER_METADATA_MAX:
        detail = f"must have at most {CONSUMER_METADATA_MAX} names"
        yield invalid("spec.consumerMetadata", len(spec.consumer_metadata), detail)


def wanted(obj: Routed) -> tuple[JsonObject | None, Sequence[JsonObject]]:
    """What the compiler is given: the filters as written, and the tags that consumer metadata asks for beside them."""
    spec = obj.spec
    tags = tags_of(obj.spec.consumer_metadata) if isinstance(obj, Subscription) else {}
    if not tags:
        return spec.filter, spec.filters
    written = spec.filters or ((spec.filter,) if spec.filter else ())
    return None, (*written, {"tags": tags})


def written_field(obj: Routed, field: str) -> str:
    """The field below `spec` that the compiler's word for a place of `wanted` means."""
    filters = wanted(obj)[1]
    if filters is obj.spec.filters:
        return field
    last = f"filters[{len(filters) - 1}].tags"
    if field.startswith(last):
        return f"consumerMetadata{field[len(last) :]}"
    return field if obj.spec.filters else field.replace("filters[0]", "filter", 1)
