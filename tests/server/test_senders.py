"""Who sends: from the token at the door, or the trigger behind the server's own socket, to the gate of events."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.context import USER, current_user
from headgate.auth.user import ANONYMOUS, User, authenticated, sender_of
from headgate.delivery.attempt_service import AttemptService, OutgoingMessage, Recipient
from headgate.delivery.retry import Outcome
from headgate.ingress.event_gate import EventGate
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import bootstrap
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers
from headgate.server.authentication import Authentication, UsersOfFronts, authenticator_of
from headgate.server.authorization import Authorization, Rights
from headgate.server.peers import local_http
from headgate.server.peers.inward import InwardTransport
from headgate.settings import Settings
from headgate_api.event.model import Event
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.ingress.support import FakeLog, call, fallback
from tests.support import token_line

USERS = {
    "root": ("root", "system:masters"),
    "ann": ("ann",),
    "crew": ("system:serviceaccount:shop:crew",),
    "stranger": ("system:serviceaccount:shop2:crew",),
}


def settings(folder: Path, **changes: Any) -> Settings:
    path = folder / "tokens.csv"
    path.write_text("".join(token_line(f"token-{name}", *known) for name, known in USERS.items()))
    path.chmod(0o600)
    return Settings(data=folder, token_auth_file=path, **changes)


def document(kind: str, name: str, version: str = "v1", **spec: object) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop"}
    return {"apiVersion": f"eventing.knative.dev/{version}", "kind": kind, "metadata": metadata, "spec": spec}


class Door:
    """The applications of a front in their order, over its objects."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        known = settings(folder, **changes)
        self.store = Store.open(folder / "control.db")
        self.admission = Admission(self.store)
        bootstrap(self.admission)
        self.admission.create(Kind.BROKER, document("Broker", "orders"))
        self._rights, self._brokers = Rights(known, self.store), ServedBrokers(self.store)
        assert self._rights.events is not None
        intake = Intake(Partitions([FakeLog()]), self._brokers.get, gate=EventGate(self._rights.events))
        authorization = Authorization(self._rights.grants.authorizer)
        self._app = Authentication(authenticator_of(known)).requests(authorization.requests(Ingress(intake, fallback)))

    def statuses(self, kind: str = "paid") -> list[int]:
        """What each of USERS is answered."""
        self._rights.refresh()
        self._brokers.refresh()
        return [asyncio.run(self._publish(name, kind)) for name in USERS]

    async def _publish(self, user: str, kind: str) -> int:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self._app(scope | {"query_string": b""}, receive, send)

        headers = [("authorization", f"Bearer token-{user}"), ("content-type", "application/cloudevents+json")]
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": kind}
        answer, _ = await call(app, path="/shop/orders", headers=headers, pieces=(json.dumps(event).encode(),))
        assert answer is not None
        return answer.status


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [
        ("allow-same-namespace", [202, 403, 202, 403]),
        ("allow-all", [202, 202, 202, 202]),
        ("deny-all", [403, 403, 403, 403]),
    ],
)
def test_a_token_a_mode_and_a_policy(tmp_path: Path, mode: str, statuses: list[int]) -> None:
    door = Door(tmp_path, default_authorization_mode=mode)
    try:
        assert door.statuses() == statuses
        senders = [{"sub": "system:serviceaccount:shop*"}, {"sub": "ann"}]
        filters = [{"exact": {"type": "paid"}}]
        policy = document("EventPolicy", "p", "v1alpha1", filters=filters, **{"from": senders})
        door.admission.create(Kind.EVENT_POLICY, policy)
        assert door.statuses() == [403, 202, 202, 202]
        assert door.statuses("sent") == [403, 403, 403, 403]
        door.store.delete(ObjectKey(Kind.EVENT_POLICY, "shop", "p"))
        assert door.statuses() == statuses
    finally:
        door.store.close()


def test_a_server_without_users_has_no_gate(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db")
    try:
        assert Rights(Settings(data=tmp_path), store).events is None
    finally:
        store.close()


@pytest.mark.parametrize(
    ("trigger", "sender"), [("shop/crm", None), ("", None), ("", authenticated("ann")), ("shop/crm", ANONYMOUS)]
)
def test_a_trigger_or_who_asked_is_the_sender_of_what_is_sent_inward(
    tmp_path: Path, trigger: str, sender: User | None
) -> None:
    seen: list[User] = []

    async def front(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(scope[USER])
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def work() -> Outcome:
        socket = tmp_path / "front.in"
        nothing: Any = None
        async with local_http.answering(UsersOfFronts(front), socket):
            health: Any = type("Health", (), {"heard": lambda *_: None})()
            service = AttemptService(InwardTransport([socket]), nothing, nothing, health)
            event = Event("1.0", "1", "/s", "t")
            message = OutgoingMessage([("ce-id", "1")], b"", event, event, "1")
            delivery: Any = type("Tried", (), {"failures": 0})()
            return await service.send(
                Recipient(url="http://x/shop/inbox", name=trigger, sender=sender), delivery, message
            )

    assert asyncio.run(work()).status == 202
    assert seen == [sender or (sender_of(trigger) if trigger else ANONYMOUS)]
    assert current_user.get() is ANONYMOUS  # the context of the attempt is its own
