"""The matcher's connections to all dispatchers, as one: a run counts when it counts at every one of them.

A dispatcher that is ahead of another drops what it has taken already (`outbox/takeover.py`), so a new run starts at the
lowest offset that any of them needs. The first dispatcher that rejects a run has rejected it for all.
"""

from __future__ import annotations

import contextlib
import selectors

from headgate import limits
from headgate.match.driver_link import Active, DriverLink, LinkAddress, Message


class DriverLinks:
    """Open connections; made by `connect`. One thread uses them.

    Attributes:
        address: For the connections of the runs.
    """

    def __init__(self, address: LinkAddress, links: tuple[DriverLink, ...]) -> None:
        self.address = address
        self._links = links
        self._selector = selectors.DefaultSelector()
        for link in links:
            self._selector.register(link, selectors.EVENT_READ)
        self._active: dict[int, set[int]] = {}
        """Runs that were told of and are not active everywhere, with the dispatchers where they are."""

    @classmethod
    def connect(cls, address: LinkAddress) -> DriverLinks:
        """Connect to every dispatcher.

        Raises:
            DriverLinkError: One does not listen, or refuses the token.
        """
        with contextlib.ExitStack() as opened:
            links = []
            for dispatcher in range(len(address.endpoints)):
                links.append(link := DriverLink.connect(address, dispatcher))
                opened.callback(link.close)
            opened.pop_all()
        return cls(address, tuple(links))

    def resume(self) -> dict[int, int]:
        """Where the next run must start if none is alive: the lowest offset of each partition.

        Raises:
            DriverLinkError: A connection is broken, or no answer came in time.
        """
        lowest: dict[int, int] = {}
        for link in self._links:
            for partition, offset in link.resume().items():
                lowest[partition] = min(offset, lowest.get(partition, offset))
        return lowest

    def started(self, run: int, generation: int) -> None:
        """Tell every dispatcher of a run; the answer is a message, now or later.

        Raises:
            DriverLinkError: A connection is broken.
        """
        self._active[run] = set()
        while len(self._active) > limits.LINK_RUNS_MAX:  # of which nobody ever said anything
            del self._active[min(self._active)]
        for link in self._links:
            link.started(run, generation)

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages about runs, as soon as there are any; none after `timeout_s`.

        Raises:
            DriverLinkError: A connection is broken.
        """
        ready = [link for link in self._links if link.has_heard]
        if not ready:
            readable = {key.fd for key, _ in self._selector.select(timeout_s)}
            ready = [link for link in self._links if link.fileno() in readable]
        return [
            message
            for link in ready
            for message in link.receive(0.0)
            if not isinstance(message, Active) or self._is_active_everywhere(message.run, link)
        ]

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self._selector.close()
        for link in self._links:
            link.close()

    def _is_active_everywhere(self, run: int, link: DriverLink) -> bool:
        """Whether a run is active at every dispatcher, now that it is at one more; true once."""
        active = self._active.get(run)
        if active is None:
            return False
        active.add(self._links.index(link))
        if len(active) < len(self._links):
            return False
        del self._active[run]
        return True
