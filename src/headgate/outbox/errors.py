"""The errors between a match and its delivery."""

from __future__ import annotations

from headgate.errors import HeadgateError, UnavailableError


class LinkProtocolError(HeadgateError):
    """A peer of the match link sent what docs/spec/match-link.md does not allow; its connection is closed."""

    code = "link-protocol"


class EventGoneError(UnavailableError):
    """The log no longer holds an event that the outbox names (retention took it, or it is damaged and passed over)."""

    code = "event-gone"
    retriable = False
