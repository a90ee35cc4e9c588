"""The story of dead letters and replays, for every deployment: whichever server is asked answers for all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

from headgate.testing.server import ApiError, Object, Server
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

OWN = "/apis/headgate.dev/v1/namespaces/default"
EVENTS = 3
PATH = "refusing"


class Keeping:
    """Triggers whose events a subscriber refuses; what became of them is asked of each server in turn.

    Args:
        servers: Of the deployment; the first one stores events.
        subscriber: Of all of the triggers.
        names: Of the triggers.
    """

    def __init__(self, servers: Sequence[Server], subscriber: Subscriber, names: Sequence[str]) -> None:
        self.server = servers[0]
        self.subscriber = subscriber
        self.names = names
        self._servers = cycle(servers)

    def ask(self, method: str, path: str, body: Object | None = None) -> Object:
        return (server := next(self._servers)).call(method, f"{server.url}{OWN}/{path}", body)

    def letters(
        self, holds: Callable[[list[Object]], bool], problem: str, query: str = "state=kept", **bound: float
    ) -> list[Object]:
        """Dead letters, as soon as something is true of them; while their owners move, nobody can say which there are.

        Args:
            holds: Of those that a server says.
            problem: What is wrong while it does not.
            query: Which ones are asked for.
            bound: Of `eventually`.
        """
        said: list[Object] | None = None

        def is_so() -> bool:
            nonlocal said
            said = self._letters(query)
            return said is not None and holds(said)

        eventually(is_so, lambda: f"{problem}: " + ("nobody can say" if said is None else f"{said}"), **bound)
        assert said is not None
        return said

    def _letters(self, query: str) -> list[Object] | None:
        """What a server says; None where it cannot say now."""
        try:
            found: list[Object] = self.ask("GET", f"deadletters?{query}")["items"]
        except ApiError as error:
            if error.status != 503:
                raise
            return None
        return found

    def create_triggers(self) -> None:
        for name in self.names:
            spec = {"broker": "default", "filter": {"attributes": {"type": "dead"}}}
            delivery = {"retry": 0, "deadLetterSink": {"uri": "http://127.0.0.1:9/"}}
            spec |= {"subscriber": {"uri": self.subscriber.url(PATH)}, "delivery": delivery}
            self.server.create("triggers", "default", name, spec)
        for name in self.names:
            self.server.wait_trigger_ready("default", name)

    def refuse(self, *ids: str) -> None:
        """These events are stored, and refused by the subscriber."""
        self.subscriber.answers[PATH] = (400, b"no")
        publisher = Publisher(self.server)
        for number, id_ in enumerate(ids):
            assert publisher.publish(id_, "dead", {"n": number}) == 202
        publisher.close()

    def dead_letters_are_listed_shown_redriven_and_discarded(self) -> None:
        count = EVENTS * len(self.names)
        self.refuse(*(f"d{number}" for number in range(EVENTS)))
        self.letters(lambda found: len(found) == count, "dead letters are missing")
        found = self.letters(lambda _: True, "they cannot be listed", query="")
        assert len({one["id"] for one in found}) == count
        for one in (found[0], found[-1]):
            assert self.ask("GET", f"deadletters/{one['id']}")["event"]["id"] == one["eventId"]
        first = found[0]["id"]
        assert self.ask("POST", "deadletters/known", {"ids": [first, 1 << 40]}) == {"known": [first]}
        assert self.ask("POST", "deadletters/discard", {"ids": [first]})["count"] == 1
        self.subscriber.answers[PATH] = (202, b"")
        heir, other = self.names[0], self.names[-1]  # of several dispatchers each has one
        left = [one for one in found[1:] if one["trigger"] != heir]
        # What it has itself of the same events would stay as it is, where both are of one dispatcher.
        kept = self.ask("POST", "deadletters/discard", {"trigger": heir, "limit": 1_000})["count"]
        assert kept == count - 1 - len(left)
        moved = self.ask("POST", f"deadletters/redrive/{heir}", {"trigger": other, "limit": 1_000})["count"]
        assert moved == sum(one["trigger"] == other for one in left)
        assert self.ask("POST", "deadletters/redrive", {"limit": 1_000})["count"] == len(left) - moved
        self.letters(lambda found: not found, "they are not sent again", query="")

    def replays_send_stored_events_again(self) -> None:
        asked = [{"trigger": name, "filter": "ce.id == 'd1'"} for name in self.names]
        ids = [self.ask("POST", "replays", one)["id"] for one in asked]
        assert len(set(ids)) == len(self.names)
        for id_ in ids:
            eventually(lambda id_=id_: self.ask("GET", f"replays/{id_}")["state"] == "done", "it does not end")
            assert self.ask("GET", f"replays/{id_}")["delivered"] == 1
        assert {one["id"] for one in self.ask("GET", "replays")["items"]} == set(ids)
        replayed = [one for one in self.subscriber.at(PATH) if "ce-headgatereplay" in one.headers]
        assert sorted(int(one.headers["ce-headgatereplay"]) for one in replayed) == sorted(ids)
        assert {one.id for one in replayed} == {"d1"}
