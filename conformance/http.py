"""The CloudEvents HTTP binding: requests accepted and refused, by ingress in this process or at a URL.

In this process the events that would be stored are compared too; over the network only the answer.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conformance.cases import CaseError, Result, judged, read
from headgate.event.trace import TRACEPARENT, TRACESTATE, context, context_of
from headgate.ingress.encode import Entries
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.log.group_commit import SubmitChain
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api.event.model import DataKind, Event

KNOWN: Final = {
    "data-string-nul": "a choice: U+0000 in a JSON string is legal, but cel-cpp cuts the string there, so filters would"
    " see another value than the data has",
}
_TRACE: Final = (TRACEPARENT, TRACESTATE)
_PATH: Final = "/default/cases"
_ANSWER_S: Final = 30
_STATUS_UNAVAILABLE: Final = (429, 503)


class ExpectedAnswer(msgspec.Struct):
    """What must come of a request; without `status` any refusal will do."""

    accept: bool
    status: int | None = None
    events: list[dict[str, Any]] | None = None


class HttpCase(msgspec.Struct):
    """A line of the file."""

    name: str
    method: str
    headers: list[tuple[str, str]]
    body_b64: str
    expect: ExpectedAnswer


class _Memory:
    """A log that keeps events in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def enqueue(self, items: Entries, size_bytes: int, chain: SubmitChain | None = None) -> int:
        self.events.extend(items.events)
        return len(self.events) - len(items)

    async def close(self) -> None:
        """See `EventLog.close`."""


def run(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of the cases, answered by ingress in this process on a log in memory."""
    for case in read(lines, HttpCase):
        log = _Memory()
        brokers = {_PATH[1:]: ServedBroker(_PATH[1:] + "/uid", DEFAULT_RULE)}
        status = asyncio.run(_answered(case, Ingress(Intake(Partitions([log]), brokers.get), _nobody)))
        events = [_described(_as_sent(case, event)) for event in log.events]
        yield judged(case.name, _compared(case.expect, status, events), KNOWN)


def _as_sent(case: HttpCase, event: Event) -> Event:
    """The event without the trace context of its request, which ingress stores with it as the tracing extension."""
    trace = context(*(next((text for name, text in case.headers if name.lower() == key), None) for key in _TRACE))
    added = trace if context_of(event) == trace else {}
    extensions = {name: value for name, value in event.extensions.items() if name not in added}
    return msgspec.structs.replace(event, extensions=extensions)


def run_at(url: str, lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of the cases, sent to a broker.

    Args:
        url: Where the broker takes events, for instance `http://127.0.0.1:8080/default/orders`.
        lines: Of the file.

    Raises:
        CaseError: Nobody answers at the URL.
    """
    target = urlsplit(url)
    if target.scheme != "http" or target.hostname is None:
        raise CaseError(f"{url} is no http:// URL")
    for case in read(lines, HttpCase):
        # A connection a case: a server that refuses a body unread closes it.
        connection = http.client.HTTPConnection(target.hostname, target.port, timeout=_ANSWER_S)
        try:
            status = _sent(connection, target.path or "/", case)
        except (OSError, http.client.HTTPException) as error:
            raise CaseError(f"{url}: {case.name}: {error}") from None
        finally:
            connection.close()
        yield judged(case.name, _compared(case.expect, status, None), KNOWN)


def _compared(expected: ExpectedAnswer, status: int, events: list[dict[str, Any]] | None) -> str:
    """What is wrong; empty when nothing is."""
    accepted = status < 300
    if accepted != expected.accept or (expected.status is not None and status != expected.status):
        wanted = expected.status or ("accepted" if expected.accept else "refused")
        return f"{'accepted' if accepted else status} instead of {wanted}"
    # As text: a JSON true equals 1 in Python.
    if accepted and events is not None and expected.events is not None and _text(events) != _text(expected.events):
        return f"{_text(events)} instead of {_text(expected.events)}"
    return ""


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


async def _answered(case: HttpCase, app: ASGIApp) -> int:
    statuses: list[int] = []
    body = base64.b64decode(case.body_b64)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(name.lower().encode(), value.encode()) for name, value in case.headers]
    await app({"type": "http", "method": case.method, "path": _PATH, "headers": headers}, receive, send)
    return statuses[0]


async def _nobody(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError(f"no publish URI: {scope['path']}")


def _described(event: Event) -> dict[str, Any]:
    """An event in the form that the cases have."""
    named = {
        "specversion": event.specversion,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "subject": event.subject,
        "time": event.time,
        "datacontenttype": event.datacontenttype,
        "dataschema": event.dataschema,
    }
    attributes: Mapping[str, object] = {name: value for name, value in named.items() if value is not None}
    described: dict[str, Any] = {
        "attributes": {**attributes, **event.extensions},
        "data_kind": event.data_kind.name.lower(),
    }
    if event.data is not None and event.data_kind is not DataKind.NONE:
        described["data"] = _data(event.data_kind, event.data)
    return described


def _data(kind: DataKind, data: bytes) -> object:
    match kind:
        case DataKind.JSON:
            return json.loads(data)
        case DataKind.TEXT:
            return data.decode()
        case _:
            return base64.b64encode(data).decode()


def _sent(connection: http.client.HTTPConnection, path: str, case: HttpCase) -> int:
    body = base64.b64decode(case.body_b64)
    connection.putrequest(case.method, path, skip_accept_encoding=True)
    for name, value in case.headers:
        connection.putheader(name, value.encode())
    connection.putheader("Content-Length", str(len(body)))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer may be there all the same
        connection.endheaders(body)
    answer = connection.getresponse()
    answer.read()
    if answer.status in _STATUS_UNAVAILABLE:
        raise CaseError(f"the broker takes no events now: {answer.status} {answer.reason}")
    return answer.status
