"""What a check works with: the broker's addresses, a server that plays all subscribers, and objects of its own.

A check raises `ViolationError` with what was wrong, `SkippedError` with why it cannot be made, and else returns what it
saw, in words that do not change from run to run. An unanswered request is a violation, too.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import itertools
import json
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from headgate_api.errors import HeadgateError, InvalidInputError

Object: TypeAlias = dict[str, Any]
"""A Kubernetes-style JSON object, as the API has it."""
Answered: TypeAlias = tuple[int, bytes, dict[str, str]]
"""Status, body and headers of an answer."""

GROUP: Final = "eventing.knative.dev/v1"
NAMESPACE: Final = "default"
POLL_S: Final = 0.03
POLL_S_MAX: Final = 0.3
_REQUEST_S: Final = 30.0
MUST: Final = "MUST"
SHOULD: Final = "SHOULD"
MAY: Final = "MAY"

FAST: Final = {"backoffDelay": "PT0.05S", "backoffPolicy": "linear"}
ONCE: Final = FAST | {"retry": 0}

_KINDS: Final = {"brokers": "Broker", "triggers": "Trigger"}


class ViolationError(HeadgateError):
    """The broker does not meet a requirement; the message is what it did."""

    code = "violation"


class SkippedError(HeadgateError):
    """The check cannot be made here; the message is the reason."""

    code = "skipped"


class BrokerApiError(HeadgateError):
    """The API refused a request."""

    code = "refused"

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the API answered {status}: {body[:300].decode('utf-8', 'replace')}")
        self.status = status


class Facility(enum.Enum):
    """What a check cannot do without, beside a publish URL; each value is a field of `BrokerAddress`."""

    API = "api"
    RESTART = "restart"
    METRICS = "metrics"


RESTARTED: Final = (Facility.API, Facility.RESTART)
COUNTED: Final = (Facility.API, Facility.METRICS)


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker is; what is empty is not there."""

    ingress: str  # a publish URL, for what needs no trigger
    api: str = ""  # of the Kubernetes-style API
    metrics: str = ""  # of its numbers in Prometheus' text format
    restart: str = ""  # a command that kills the broker and returns when it is ready again
    host: str = "127.0.0.1"  # under which the broker reaches this machine
    patience_s: float = 60.0  # how long something may take that must happen
    quiet_s: float = 1.0  # how long a check waits for something that must not happen


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that came to a subscriber."""

    method: str
    headers: Mapping[str, str]  # by their names in lower case
    body: bytes
    at: float  # monotonic seconds

    @property
    def id(self) -> str:
        return self.attribute("id")

    def attribute(self, name: str) -> str:
        """A context attribute, in binary or structured mode; empty without it."""
        if self.headers.get("content-type", "").startswith("application/cloudevents"):
            return str(json.loads(self.body).get(name, ""))
        return self.headers.get(f"ce-{name}", "")


Respond: TypeAlias = Callable[[ReceivedRequest], Answered]


@dataclass
class Inbox:
    """A subscriber: what came, in its order, and what it answers."""

    url: str
    respond: Respond
    deliveries: list[ReceivedRequest] = field(default_factory=list)
    busy: int = 0  # requests being answered now
    busy_max: int = 0  # the most there were

    @property
    def ids(self) -> list[str]:
        return [delivery.id for delivery in self.deliveries]


def answer(status: int, body: bytes = b"", **headers: str) -> Respond:
    """A subscriber that always answers this; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: (status, body, named)


def in_turn(*responds: Respond) -> Respond:
    """A subscriber that answers like one after the other, and from then on like the last."""
    turns = itertools.chain(responds, itertools.repeat(responds[-1]))
    return lambda delivery: next(turns)(delivery)


class CheckEnvironment:
    """A broker to check, and this machine's server for subscribers; a context manager."""

    def __init__(self, where: BrokerAddress) -> None:
        for url in filter(None, (where.ingress, where.api, where.metrics)):
            if urlsplit(url).scheme != "http" or not urlsplit(url).hostname:
                raise InvalidInputError(f"{url} is no http:// URL")
        self.where = where
        self.offers = {need for need in Facility if getattr(where, need.value)}
        self.run = uuid.uuid4().hex[:6]
        self.inboxes: dict[str, Inbox] = {}
        self._server = _Server(("0.0.0.0" if where.host != "127.0.0.1" else "127.0.0.1", 0), _handler(self))
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> CheckEnvironment:
        threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def api_url(self, path: str) -> str:
        """Where the API has a path below the namespace of the checks."""
        return f"{self.where.api.rstrip('/')}/apis/{GROUP}/namespaces/{NAMESPACE}/{path}"

    def api(self, method: str, path: str, body: Object | None = None) -> Object:
        """A call of the API; raises BrokerApiError for any answer but 2xx."""
        headers, content = {"content-type": "application/json"}, b"" if body is None else json.dumps(body).encode()
        status, answered, _ = request(method, self.api_url(path), headers, content)
        if not 200 <= status < 300:
            raise BrokerApiError(status, answered)
        return json.loads(answered)  # type: ignore[no-any-return]

    def restart(self) -> None:
        done = subprocess.run(shlex.split(self.where.restart), check=False, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise SkippedError(f"the command of --restart ended with status {done.returncode}")

    def numbers(self) -> dict[str, float]:
        """Samples of what the broker's metrics count, by name and labels; what goes up and down counts nothing."""
        _, body, _ = request("GET", self.where.metrics, {}, b"")
        lines = body.decode().splitlines()
        gauges = {line.split()[2] for line in lines if line.startswith("# TYPE ") and line.endswith(" gauge")}
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples if name.partition("{")[0] not in gauges}


def request(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answered:
    """One request over a connection of its own; raises ViolationError when there is no answer."""
    connection, path = _connection(url, _REQUEST_S)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who refuses a body unread has answered
            connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
    except (OSError, http.client.HTTPException) as error:
        raise ViolationError(f"{method} is not answered: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _connection(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout_s), path


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        """A broker that breaks off is its own business."""


def _handler(environment: CheckEnvironment) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            inbox = environment.inboxes.get(self.path)
            if inbox is None:
                self._send((404, b"", {}))
                return
            delivery = ReceivedRequest(self.command, headers, body, time.monotonic())
            with lock:
                inbox.deliveries.append(delivery)
                inbox.busy += 1
                inbox.busy_max = max(inbox.busy_max, inbox.busy)
            try:
                self._send(inbox.respond(delivery))
            finally:
                with lock:
                    inbox.busy -= 1

        do_GET = do_PUT = do_OPTIONS = do_POST

        def _send(self, answered: Answered) -> None:
            status, body, headers = answered
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: findings are the output."""

    return Handler


@dataclass(frozen=True)
class Check:
    """One requirement, numbered as in the contract."""

    id: str
    level: str  # how binding it is: MUST, SHOULD, MAY
    title: str
    work: Callable[[CheckContext], str]  # returns what was seen
    needs: tuple[Facility, ...] = (Facility.API,)  # without which it is skipped


class CheckContext:
    """One check's own objects, which have its name in theirs, and subscribers; a context manager that removes them."""

    def __init__(self, environment: CheckEnvironment, name: str) -> None:
        self.environment = environment
        self.ingress = environment.where.ingress
        self._name = name
        self._made: list[tuple[str, str]] = []

    def __enter__(self) -> CheckContext:
        return self

    def __exit__(self, *_: object) -> None:
        for kind, name in reversed(self._made):
            try:
                self.environment.api("DELETE", f"{kind}/{self.named(name)}")
            except (BrokerApiError, ViolationError):
                continue  # gone already, or the broker does not answer any more

    # --- objects --------------------------------------------------------------------------------------

    def named(self, name: str) -> str:
        return f"hgc-{self.environment.run}-{self._name}-{name}"

    def create(self, kind: str, name: str, spec: Object, **annotations: str) -> Object:
        metadata: Object = {"name": self.named(name), "namespace": NAMESPACE}
        if annotations:
            metadata["annotations"] = annotations
        body = {"apiVersion": GROUP, "kind": _KINDS[kind], "metadata": metadata, "spec": spec}
        self._made.append((kind, name))
        return self.environment.api("POST", kind, body)

    def get(self, kind: str, name: str) -> Object:
        return self.environment.api("GET", f"{kind}/{self.named(name)}")

    def replace(self, kind: str, name: str, change: Callable[[Object], None]) -> Object:
        found = self.get(kind, name)
        change(found)
        return self.environment.api("PUT", f"{kind}/{self.named(name)}", found)

    def refuses(self, what: str, work: Callable[[], object]) -> None:
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
        destination = {"uri": subscriber.url} if isinstance(subscriber, Inbox) else subscriber
        self.create("triggers", name, {"broker": self.named(broker), "subscriber": destination, **spec})
        if wait:
            self.ready("triggers", name)

    def routed(self) -> tuple[str, Inbox]:
        """A broker, and a subscriber with a trigger for all its events; the publish URL and the subscriber."""
        url, inbox = self.broker(), self.inbox("t")
        self.trigger("t", inbox)
        return url, inbox

    def subscriber(self, name: str, respond: Respond | None = None, *, broker: str = "b", **spec: object) -> Inbox:
        """A new subscriber with a trigger, which is not waited for."""
        inbox = self.inbox(name, respond)
        self.trigger(name, inbox, broker=broker, wait=False, **spec)
        return inbox

    def all_ready(self, *triggers: str) -> None:
        """Wait until these triggers are Ready; without any, all that there are of this check."""
        made = [name for kind, name in self._made if kind == "triggers"]
        for name in triggers or made:
            self.ready("triggers", name)

    def ready(self, kind: str, name: str) -> Object:
        return self.until_ready(kind, name, "True")

    def until_ready(self, kind: str, name: str, status: str) -> Object:
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
        watch = f"{kind}?watch=1&fieldSelector=metadata.name%3D{self.named(name)}"
        connection, path = _connection(self.environment.api_url(watch), self.environment.where.patience_s)
        connection.request("GET", path)
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
        path = f"/{self._name}/{name}"
        url = f"http://{self.environment.where.host}:{self.environment.port}{path}"
        inbox = self.environment.inboxes[path] = Inbox(url, respond or answer(202))
        return inbox

    def post(self, url: str, headers: Mapping[str, str], body: bytes = b"", method: str = "POST") -> Answered:
        return request(method, url, headers, body)

    def accepted(self, url: str, headers: Mapping[str, str], body: bytes = b"", what: str = "a valid event") -> int:
        """The status by which a request is accepted; raises ViolationError when it is not."""
        status, _, _ = self.post(url, headers, body)
        expect(200 <= status < 300, f"{what} is answered with {status}")
        return status

    def publish(self, url: str, event_id: str, type_: str = "t", data: object = None, **extensions: str) -> None:
        """Publish one event in binary mode; raises ViolationError when it is not accepted."""
        headers = {"ce-specversion": "1.0", "ce-id": event_id, "ce-source": "/conformance", "ce-type": type_}
        headers |= {f"ce-{name}": value for name, value in extensions.items()}
        if data is not None:
            headers["content-type"] = "application/json"
        self.accepted(url, headers, b"" if data is None else json.dumps(data).encode())

    def publish_all(self, url: str, ids: Iterable[object], type_: str = "t") -> list[str]:
        """Publish an event for each of these ids; they as texts."""
        published = list(map(str, ids))
        for event_id in published:
            self.publish(url, event_id, type_)
        return published

    def happens(self, holds: Callable[[], bool]) -> bool:
        """Whether something comes to hold in time."""
        deadline, pause_s = time.monotonic() + self.environment.where.patience_s, POLL_S
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, POLL_S_MAX)  # many checks ask the broker at a time, and it is at work
        return True

    def rests(self, count: Callable[[], int]) -> None:
        """Wait until a count has not grown in a while."""
        most, since = count(), time.monotonic()
        while time.monotonic() - since < self.environment.where.quiet_s:
            time.sleep(POLL_S)
            if (now := count()) > most:
                most, since = now, time.monotonic()

    def missing(self, inbox: Inbox, event_ids: Iterable[str]) -> set[str]:
        """Wait until these events have come; those that have not."""
        self.happens(lambda: set(event_ids) <= set(inbox.ids))
        return set(event_ids) - set(inbox.ids)

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
