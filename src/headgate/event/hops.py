"""How many times has this event been through a broker on its way? What ends loops.

The count is an extension of the stored event, `headgatehops`, so that it is as durable as the event and filters can
ask for it; producers do not send it and subscribers do not see it as an attribute. On the wire it is the header
`headgate-hops` of every delivery. Ingress takes it from there: a broker that is the subscriber or the dead-letter sink
of a trigger goes on counting, on this server or on another one. The count of a reply is the dispatcher's, whatever the
reply says.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.event.model import Event

ATTRIBUTE: Final = "headgatehops"
HEADER: Final = "headgate-hops"


def hops_of(event: Event) -> int:
    """The count of a stored event; 0 for one that came from a producer."""
    value = event.extensions.get(ATTRIBUTE, 0)
    return value if type(value) is int else 0


def with_hops(event: Event, hops: int) -> Event:
    """The event with this count in the place of any that it carries."""
    if hops == 0 and ATTRIBUTE not in event.extensions:
        return event
    extensions = {name: value for name, value in event.extensions.items() if name != ATTRIBUTE}
    if hops:
        extensions[ATTRIBUTE] = hops
    return msgspec.structs.replace(event, extensions=extensions)
