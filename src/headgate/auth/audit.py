"""The audit log: who did what, from where, and by which decision, in the shape of Kubernetes' audit `Event`.

A line for every write and every refusal; never data, never a token. What is asked (`verb`, `objectRef`) and why it was
allowed or not is filled in by whoever decides, in the entry that goes along with the request.
Source: https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from headgate.auth.user import ANONYMOUS, User
from headgate.limits import AUDIT_TEXT_CHARS_MAX

DECISION: Final = "authorization.k8s.io/decision"
REASON: Final = "authorization.k8s.io/reason"
_VERBS: Final = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "OPTIONS": "options",
}
_READS: Final = frozenset({"get", "list", "watch", "options"})
_REFUSALS: Final = frozenset({401, 403, 429})


class Asked(Protocol):
    """What a request asks for, as who decides about it sees it; empty where it says nothing."""

    @property
    def verb(self) -> str:
        """Kubernetes' word: `create`, `update`, ..."""
        ...

    @property
    def group(self) -> str:
        """Of the API."""
        ...

    @property
    def resource(self) -> str:
        """Plural, in lower case."""
        ...

    @property
    def subresource(self) -> str:
        """`events`, `status`, ..."""
        ...

    @property
    def namespace(self) -> str:
        """Of the object."""
        ...

    @property
    def name(self) -> str:
        """Of the object."""
        ...


@dataclass(slots=True)
class AuditEntry:
    """A request as the audit log will have it; it is filled in on the request's way.

    Attributes:
        path: Of HTTP without the query, or the method of gRPC.
        address: Where it comes from.
        agent: The client's own name.
        verb: Kubernetes' word, by the HTTP method until who decides knows better.
        received_s: Seconds since 1970.
        user: Who makes it.
        impersonated: As whom; None: as himself.
        about: What it is about, as in `objectRef`; empty where nobody decided.
        decision: `allow`, `forbid`, or empty where nobody decided.
        reason: By which rule.
    """

    path: str
    address: str
    agent: str
    verb: str
    received_s: float = field(default_factory=time.time)
    user: User = ANONYMOUS
    impersonated: User | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    decision: str = ""
    reason: str = ""

    def decided(self, asked: Asked, *, is_allowed: bool, reason: str) -> None:
        """Says what is asked, and what was decided.

        Args:
            asked: What.
            is_allowed: Whether it may be done.
            reason: By which rule, or why not.
        """
        self.verb, self.reason = asked.verb, reason
        self.decision = "allow" if is_allowed else "forbid"
        found = {
            "resource": asked.resource,
            "namespace": asked.namespace,
            "name": asked.name,
            "apiGroup": asked.group,
            "subresource": asked.subresource,
        }
        self.about = {key: value[:AUDIT_TEXT_CHARS_MAX] for key, value in found.items() if value}

    def refused(self, reason: str) -> None:
        """Says that what was allowed by then is refused all the same."""
        self.decision, self.reason = "forbid", reason[:AUDIT_TEXT_CHARS_MAX]


def verb_of(method: str) -> str:
    """Kubernetes' verb for a method of HTTP."""
    return _VERBS.get(method, "unknown")


def is_recorded(entry: AuditEntry, status: int) -> bool:
    """Whether a request with this answer belongs into the log: a write, or a refusal."""
    return status in _REFUSALS or entry.decision == "forbid" or entry.verb not in _READS


def line_of(entry: AuditEntry, status: int, message: str = "", *, clock_s: Callable[[], float] = time.time) -> bytes:
    """A line of the log, with its end.

    Args:
        entry: The request.
        status: Of HTTP, with which it was answered.
        message: Why it was refused.
        clock_s: Seconds since 1970.
    """
    response: dict[str, Any] = {"metadata": {}, "code": status}
    if message:
        response["message"] = message[:AUDIT_TEXT_CHARS_MAX]
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": str(uuid.uuid4()),
        "stage": "ResponseComplete",
        "requestURI": entry.path[:AUDIT_TEXT_CHARS_MAX],
        "verb": entry.verb,
        "user": _user(entry.user),
        "sourceIPs": [entry.address] if entry.address else [],
        "userAgent": entry.agent[:AUDIT_TEXT_CHARS_MAX],
    }
    if entry.impersonated is not None:
        event["impersonatedUser"] = _user(entry.impersonated)
    if entry.about:
        event["objectRef"] = dict(entry.about)
    event |= {
        "responseStatus": response,
        "requestReceivedTimestamp": _time(entry.received_s),
        "stageTimestamp": _time(clock_s()),
        "annotations": {DECISION: entry.decision, REASON: entry.reason} if entry.decision else {},
    }
    return msgspec.json.encode(event) + b"\n"


def _user(user: User) -> dict[str, Any]:
    found: dict[str, Any] = {"username": user.name, "groups": user.groups}
    if user.uid:
        found["uid"] = user.uid
    if user.extra:
        found["extra"] = dict(user.extra)
    return found


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
