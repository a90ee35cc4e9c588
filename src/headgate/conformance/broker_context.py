"""The context of a check: objects and subscribers of its own, events, and what must hold.

A check raises `ViolationError` with what was wrong, `SkippedError` with why it cannot be made, and else returns what it
saw, in words that do not change from run to run. An unanswered request is a violation, too.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from headgate.conformance.broker_environment import (
    GROUP,
    NAMESPACE,
    POLL_S,
    Answered,
    BrokerApiError,
    CheckEnvironment,
    Facility,
    Inbox,
    Object,
    Respond,
    ViolationError,
    answer,
    request,
)

MUST: Final = "MUST"
SHOULD: Final = "SHOULD"
MAY: Final = "MAY"

_KINDS: Final = {"brokers": "Broker", "triggers": "Trigger"}


@dataclass(frozen=True)
class Check:
    """One requirement.

    Attributes:
        id: As the contract numbers it.
        level: How binding it is.
        title: The requirement, in short.
        needs: Without which it is skipped.
        work: Returns what was seen.
    """

    id: str
    level: str
    title: str
    needs: tuple[Facility, ...]
    work: Callable[[CheckContext], str]


class CheckContext:
    """One check's own objects and subscribers; a context manager that removes the objects.

    Args:
        environment: Shared by all checks.
        name: Of the check: part of every object's name.
    """

    def __init__(self, environment: CheckEnvironment, name: str) -> None:
        self.environment = environment
        self._name = name
        self._made: list[str] = []

    def __enter__(self) -> CheckContext:
        return self

    def __exit__(self, *_: object) -> None:
        for path in reversed(self._made):
            try:
                self.environment.api("DELETE", path)
            except (BrokerApiError, ViolationError):
                continue  # gone already, or the broker does not answer any more

    # --- objects --------------------------------------------------------------------------------------

    def named(self, name: str) -> str:
        """The full name of an object of this check."""
        return f"hgc-{self.environment.run}-{self._name}-{name}"

    def create(self, kind: str, name: str, spec: Object, **annotations: str) -> Object:
        """Create an object; raises BrokerApiError when the API refuses it."""
        metadata: Object = {"name": self.named(name), "namespace": NAMESPACE}
        if annotations:
            metadata["annotations"] = annotations
        body = {"apiVersion": GROUP, "kind": _KINDS[kind], "metadata": metadata, "spec": spec}
        self._made.append(f"{kind}/{self.named(name)}")
        return self.environment.api("POST", kind, body)

    def get(self, kind: str, name: str) -> Object:
        """An object as it is now."""
        return self.environment.api("GET", f"{kind}/{self.named(name)}")

    def replace(self, kind: str, name: str, change: Callable[[Object], None]) -> Object:
        """Change an object's present version and put it back."""
        found = self.get(kind, name)
        change(found)
        return self.environment.api("PUT", f"{kind}/{self.named(name)}", found)

    def refuses(self, what: str, work: Callable[[], object]) -> None:
        """Raises ViolationError unless the API refuses with 4xx."""
        try:
            work()
        except BrokerApiError as refused:
            if 400 <= refused.status < 500:
                return
            raise ViolationError(f"{what}: {refused.message}") from refused
        raise ViolationError(f"{what} is accepted")

    def broker(self, name: str = "b", *, wait: bool = True, **spec: object) -> str:
        """Make a broker; returns its publish URL, empty when it is not waited for."""
        self.create("brokers", name, spec)
        return self.ready("brokers", name)["status"]["address"]["url"] if wait else ""

    def trigger(
        self, name: str, subscriber: Inbox | Object, *, broker: str = "b", wait: bool = True, **spec: object
    ) -> None:
        """Make a trigger; of several, only the last needs to be waited for when `all_ready` follows."""
        destination = {"uri": subscriber.url} if isinstance(subscriber, Inbox) else subscriber
        self.create("triggers", name, {"broker": self.named(broker), "subscriber": destination, **spec})
        if wait:
            self.ready("triggers", name)

    def routed(self) -> tuple[str, Inbox]:
        """A broker, and a subscriber with a trigger for all its events; the publish URL and the subscriber."""
        url, inbox = self.broker(), self.inbox("t")
        self.trigger("t", inbox)
        return url, inbox

    def all_ready(self, *triggers: str) -> None:
        """Wait until these triggers are Ready."""
        for name in triggers:
            self.ready("triggers", name)

    def ready(self, kind: str, name: str) -> Object:
        """Wait until an object's present version is Ready."""
        return self.until_ready(kind, name, "True")

    def until_ready(self, kind: str, name: str, status: str) -> Object:
        """Wait until an object's present version has this Ready condition."""
        found: list[Object] = []

        def holds() -> bool:
            found[:] = [self.get(kind, name)]
            return ready_of(found[0]).get("status") == status and found[0]["status"].get(
                "observedGeneration", 0
            ) >= found[0]["metadata"].get("generation", 0)

        if not self.happens(holds):
            raise ViolationError(f"a {_KINDS[kind]} does not come to Ready={status}: {found[0].get('status')}")
        return found[0]

    def versions(self, kind: str, name: str, work: Callable[[], object]) -> list[Object]:
        """Every version of an object that a watch sends: up to the newest one when `work` has ended, and 0.3 s more."""
        watch = f"{self.environment.where.api.rstrip('/')}/apis/{GROUP}/namespaces/{NAMESPACE}/{kind}?watch=1"
        url = urlsplit(f"{watch}&fieldSelector=metadata.name%3D{self.named(name)}")
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=self.environment.where.patience_s)
        connection.request("GET", f"{url.path}?{url.query}")
        lines = connection.getresponse()
        seen: list[Object] = []

        def listen() -> None:
            try:
                while line := lines.readline():
                    seen.append(json.loads(line)["object"])
            except (OSError, ValueError, LookupError, AttributeError, http.client.HTTPException):
                return  # it was ended from the other thread, in the middle of whatever it did

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()

        def is_up_to_date() -> bool:
            newest = _version_of(self.get(kind, name))
            return bool(seen) and _version_of(seen[-1]) == newest

        try:
            work()
            self.happens(is_up_to_date)
            time.sleep(0.3)
        finally:
            if connection.sock is not None:
                connection.sock.shutdown(2)
            listener.join(1.0)
            connection.close()
        if not seen:
            raise ViolationError(f"a watch of {kind} sends nothing")
        return seen

    # --- events ---------------------------------------------------------------------------------------

    def inbox(self, name: str, respond: Respond | None = None) -> Inbox:
        """A new subscriber."""
        path = f"/{self._name}/{name}"
        url = f"http://{self.environment.where.host}:{self.environment.port}{path}"
        inbox = self.environment.inboxes[path] = Inbox(url, respond or answer(202))
        return inbox

    def post(self, url: str, headers: Mapping[str, str], body: bytes = b"", method: str = "POST") -> Answered:
        """A request to a publish URL."""
        return request(method, url, headers, body)

    def publish(self, url: str, event_id: str, type_: str = "t", data: object = None, **extensions: str) -> None:
        """Publish one event in binary mode; raises ViolationError when it is not accepted."""
        headers = {"ce-specversion": "1.0", "ce-id": event_id, "ce-source": "/conformance", "ce-type": type_}
        headers |= {f"ce-{name}": value for name, value in extensions.items()}
        if data is not None:
            headers["content-type"] = "application/json"
        status, _, _ = self.post(url, headers, b"" if data is None else json.dumps(data).encode())
        if not 200 <= status < 300:
            raise ViolationError(f"a valid event is answered with {status}")

    def happens(self, holds: Callable[[], bool]) -> bool:
        """Whether something comes to hold in time."""
        deadline = time.monotonic() + self.environment.where.patience_s
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def rests(self, count: Callable[[], int]) -> None:
        """Wait until a count has not grown in a while."""
        most, since = count(), time.monotonic()
        while time.monotonic() - since < self.environment.where.quiet_s:
            time.sleep(POLL_S)
            if (now := count()) > most:
                most, since = now, time.monotonic()

    def arrive(self, inbox: Inbox, *event_ids: str, what: str = "") -> None:
        """Wait until exactly these events have come, once each, and no other in a while; in any order."""
        wanted = sorted(event_ids)
        self.happens(lambda: len(inbox.deliveries) >= len(wanted))
        time.sleep(self.environment.where.quiet_s)
        if sorted(inbox.ids) != wanted:
            raise ViolationError(f"{what or 'a subscriber'} got {sorted(inbox.ids)} instead of {wanted}")


def _version_of(item: Object) -> object:
    return item.get("metadata", {}).get("resourceVersion")


def ready_of(item: Object) -> Object:
    """The Ready condition of an object, {} without one."""
    return next((c for c in item.get("status", {}).get("conditions", []) if c["type"] == "Ready"), {})


def expect(holds: object, otherwise: str) -> None:
    """Raises ViolationError unless something holds."""
    if not holds:
        raise ViolationError(otherwise)
