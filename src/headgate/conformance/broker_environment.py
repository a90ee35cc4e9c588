"""The environment of checks: the broker's addresses, and a server that plays all subscribers."""

from __future__ import annotations

import contextlib
import enum
import http.client
import json
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from headgate.errors import HeadgateError, InvalidInputError

Object: TypeAlias = dict[str, Any]
"""A Kubernetes-style JSON object, as the API has it."""
Answered: TypeAlias = tuple[int, bytes, dict[str, str]]
"""Status, body and headers of an answer."""

GROUP: Final = "eventing.knative.dev/v1"
NAMESPACE: Final = "default"
POLL_S: Final = 0.03
_REQUEST_S: Final = 30.0


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
    """What a check cannot do without, beside a publish URL."""

    API = "api"
    RESTART = "restart"
    METRICS = "metrics"


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker is.

    Attributes:
        ingress: A publish URL, for what needs no trigger.
        api: Of the Kubernetes-style API; empty when there is none.
        metrics: Of its numbers in Prometheus' text format; empty when there are none.
        restart: A command that kills the broker and returns when it is ready again; empty when it must not be.
        host: Under which the broker reaches this machine.
        patience_s: How long something may take that must happen.
        quiet_s: How long a check waits for something that must not happen.
    """

    ingress: str
    api: str = ""
    metrics: str = ""
    restart: str = ""
    host: str = "127.0.0.1"
    patience_s: float = 60.0
    quiet_s: float = 1.0


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that came to a subscriber.

    Attributes:
        method: Of HTTP.
        headers: Names in lower case.
        body: All of it.
        at: Monotonic seconds.
    """

    method: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def id(self) -> str:
        """The event's, however it is sent."""
        return self.attribute("id")

    def attribute(self, name: str) -> str:
        """A context attribute, in binary or structured mode; empty without it."""
        if self.headers.get("content-type", "").startswith("application/cloudevents"):
            return str(json.loads(self.body).get(name, ""))
        return self.headers.get(f"ce-{name}", "")


Respond: TypeAlias = Callable[[ReceivedRequest], Answered]


@dataclass
class Inbox:
    """A subscriber: what came, and what it answers.

    Attributes:
        url: Of it.
        respond: From a delivery to its answer.
        deliveries: In the order in which they came.
        busy: Requests being answered now.
        busy_max: The most there were.
    """

    url: str
    respond: Respond
    deliveries: list[ReceivedRequest] = field(default_factory=list)
    busy: int = 0
    busy_max: int = 0

    @property
    def ids(self) -> list[str]:
        """Of the events that came, in order."""
        return [delivery.id for delivery in self.deliveries]


def answer(status: int, body: bytes = b"", **headers: str) -> Respond:
    """A subscriber that always answers this; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: (status, body, named)


class CheckEnvironment:
    """A broker to check, and this machine's server for subscribers; a context manager.

    Args:
        where: The broker.
    """

    def __init__(self, where: BrokerAddress) -> None:
        for url in filter(None, (where.ingress, where.api, where.metrics)):
            if urlsplit(url).scheme != "http" or not urlsplit(url).hostname:
                raise InvalidInputError(f"{url} is no http:// URL")
        self.where = where
        self.offers = {
            need
            for need, text in (
                (Facility.API, where.api),
                (Facility.RESTART, where.restart),
                (Facility.METRICS, where.metrics),
            )
            if text
        }
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

    def api(self, method: str, path: str, body: Object | None = None) -> Object:
        """A call of the API; raises BrokerApiError for any answer but 2xx."""
        status, answered, _ = request(
            method,
            f"{self.where.api.rstrip('/')}/apis/{GROUP}/namespaces/{NAMESPACE}/{path}",
            {"content-type": "application/json"},
            b"" if body is None else json.dumps(body).encode(),
        )
        if not 200 <= status < 300:
            raise BrokerApiError(status, answered)
        found: Object = json.loads(answered)
        return found

    def restart(self) -> None:
        """Kill the broker and start it again."""
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
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=_REQUEST_S)
    try:
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who refuses a body unread has answered
            connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
    except (OSError, http.client.HTTPException) as error:
        raise ViolationError(f"{method} is not answered: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


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
