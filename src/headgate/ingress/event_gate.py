"""The gate of events: what EventPolicies admit to a broker, by sender, attributes and data.

Filters are evaluated by the one evaluator (`filter/cel`). A filter that is an error on an event does not admit it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from headgate.auth.event_policies import EventForbiddenError, EventPolicyAuthority
from headgate.auth.user import User, namespace_of_account
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate_api.errors import TooLargeError
from headgate_api.event.model import Event
from headgate_api.event.names import namespace_of
from headgate_api.limits import EVENT_POLICY_S_MAX, EVENT_POLICY_TURN_S

_TEXT_CHARS_MAX: Final = 200
"""Of an attribute in a message."""
_HINT: Final = "the EventPolicies of the broker's namespace say who may send which events"


class EventPolicyTimeError(TooLargeError):
    """The filters of EventPolicies take longer than EVENT_POLICY_S_MAX on the events of one request."""

    code = "event-policy-time"


class EventGate:
    """Lets pass what policies admit. Lives on one event loop. The clock is monotonic."""

    def __init__(self, authority: EventPolicyAuthority, *, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._authority = authority
        self._clock_s = clock_s

    async def admit(self, sender: User, broker: str, events: Sequence[Event], *, is_reply: bool = False) -> None:
        """Lets the events of one request pass, or none of them: EventForbiddenError names the one that may not.

        Who publishes has passed the broker's door. A reply has not: that of a trigger of another namespace has to.
        """
        is_from_elsewhere = is_reply and namespace_of_account(sender.name) not in ("", namespace_of(broker))
        if is_from_elsewhere and not self._authority.policies.door(sender, broker):
            what = f'user "{sender.name}" may not send replies to {broker}, a broker of another namespace'
            raise EventForbiddenError(what, hint=_HINT)
        filters = self._filters(sender, broker)
        if filters is None:
            return
        begun = turn = self._clock_s()
        stored_us = time.time_ns() // 1_000
        for index, event in enumerate(events):
            view = EventView(event, stored_us)
            for cel in filters:
                now = self._clock_s()
                if now - begun > EVENT_POLICY_S_MAX:
                    _give_up(broker, index, len(events))
                if now - turn > EVENT_POLICY_TURN_S:
                    await asyncio.sleep(0)
                    turn = self._clock_s()
                if _is_true(cel, view):
                    break
            else:
                _refuse(sender, broker, event, index if len(events) > 1 else None)

    def check(self, sender: User, broker: str, event: Event) -> None:
        """Lets one event pass; for a thread of its own. Raises EventForbiddenError when it is not admitted."""
        filters = self._filters(sender, broker)
        if filters is not None:
            view = EventView(event, time.time_ns() // 1_000)
            if not any(_is_true(cel, view) for cel in filters):
                _refuse(sender, broker, event, None)

    def _filters(self, sender: User, broker: str) -> tuple[str, ...] | None:
        """One of these must be true of each event; None: every event is admitted. EventForbiddenError: none is."""
        found = self._authority.policies.admission(sender, broker)
        if found.every:
            return None
        if not found.filters:
            what = f'user "{sender.name}" may not send events to {broker}: {found.reason}'
            raise EventForbiddenError(what, hint=_HINT)
        return found.filters


def _is_true(cel: str, view: EventView) -> bool:
    try:
        return program(cel).evaluate_view(view).kind is OutcomeKind.TRUE
    except FilterError:  # the text is one that this version no longer takes: closed
        return False


def _give_up(broker: str, judged: int, count: int) -> NoReturn:
    raise EventPolicyTimeError(
        f"the filters of EventPolicies of {broker} took over {EVENT_POLICY_S_MAX:g} s"
        f" on {judged} of {count} events (EVENT_POLICY_S_MAX)",
        hint="send smaller batches, or make the filters cheaper",
    )


def _refuse(sender: User, broker: str, event: Event, index: int | None) -> NoReturn:
    place = "the event" if index is None else f"event {index}"
    shown = f"id {event.id[:_TEXT_CHARS_MAX]!r}, type {event.type[:_TEXT_CHARS_MAX]!r}"
    raise EventForbiddenError(
        f'{place} ({shown}) may not be sent to {broker} by user "{sender.name}": no filter of an EventPolicy that'
        " names the user is true of it",
        index=index,
        hint=_HINT,
    )
