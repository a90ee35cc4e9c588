"""W3C trace context as CloudEvents' distributed tracing extension.

An event that comes with a `traceparent` header and without the extension is stored with the extension: where spans are
made, with the context of the span that received it. One that the producer has set stays as it is (it names where the
event's way began); the header of each delivery names the hop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headgate_api.event.model import Event

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACESTATE_CHARS_MAX: Final = 512
"""The length that W3C requires; a longer one is dropped, as it allows."""

_FORM: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?", re.ASCII
)
_PRINTABLE: Final = re.compile("[ -~]+")
"""As an attribute may be; a header may have tabs."""

Context = Mapping[str, str]
"""`traceparent` and perhaps `tracestate`; empty for no trace."""


def context(traceparent: object, tracestate: object) -> dict[str, str]:
    """A context from what somebody sent; empty when it is none."""
    if not isinstance(traceparent, str) or len(traceparent) > TRACESTATE_CHARS_MAX or not _FORM.fullmatch(traceparent):
        return {}
    found = {TRACEPARENT: traceparent}
    if isinstance(tracestate, str) and 0 < len(tracestate) <= TRACESTATE_CHARS_MAX and _PRINTABLE.fullmatch(tracestate):
        found[TRACESTATE] = tracestate
    return found


def context_of(event: Event) -> dict[str, str]:
    """The context that an event carries; empty for none."""
    extensions = event.extensions
    if TRACEPARENT not in extensions:
        return {}
    return context(extensions[TRACEPARENT], extensions.get(TRACESTATE))


def with_context(event: Event, trace: Context) -> Event:
    """The event with this context, unless it carries one of its own."""
    if not trace or TRACEPARENT in event.extensions:
        return event
    return msgspec.structs.replace(event, extensions={**event.extensions, **trace})
