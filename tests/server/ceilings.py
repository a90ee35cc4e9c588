"""A server in one process, behind its gate of rights: what users below a ceiling may ask of it, by HTTP.

Two such servers differ in the hidden events alone, so what differs in two answers is a leak.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from headgate.auth.context import USER
from headgate.auth.user import User, authenticated
from headgate.deadletters.api import CountsPage
from headgate.deadletters.store import DeadLetterCount
from headgate.delivery.recent import RecentAttempt
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.event.hops import place_root, with_lineage
from headgate.filter.compile.plan import Verdict
from headgate.inspect.catalogue import Catalogues
from headgate.inspect.file_records import FileRecords
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.api.api import ControlApi
from headgate.objects.api.bootstrap import bootstrap
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.routing import Target
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.objects.views.copies import RbacCopy
from headgate.observe.history import NumbersHistory
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import LogScanner
from headgate.server.authentication import UsersOfFronts
from headgate.server.authorization import AuthorizedRequests, Ceilings
from headgate.server.peers.dead_letters import DeadLettersFront, ReplaysFront
from headgate.server.peers.dispatcher_group import DispatcherGroup, DispatcherQuestion, DispatcherReach
from headgate.server.peers.local_http import WholeAnswer
from headgate.server.peers.target_stats import BacklogCount, BacklogOf, StatsReply, TargetStats, Undelivered
from headgate.server.processes import control
from headgate.storage.files import directories_of
from headgate.stream.api import ReadApi
from headgate.stream.follow import Readers
from headgate_api.event.model import DataKind, Event
from headgate_api.event.names import path_of
from headgate_api.objects.kinds import Kind
from tests.objects.support import Answer, broker

START_US = 1_767_225_600_000_000
RBAC = "rbac.authorization.k8s.io"
EVENTING = "eventing.knative.dev"
OWN = "headgate.dev"
CEILING = 'data.tenant == "blue"'
BLUE, RED, ROOT = authenticated("blue"), authenticated("red"), authenticated("root", ("system:masters",))
ALL = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]


def rule(group: str, resources: str, verbs: list[str], **more: object) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs, **more}


def events_rule(**more: object) -> dict[str, Any]:
    return rule(EVENTING, "brokers brokers/events", ["get", "knsubscribe"], **more)


EVERYTHING_ELSE = [
    rule(EVENTING, "brokers triggers eventtypes", ALL),
    rule(EVENTING, "brokers/why brokers/trace brokers/timeline brokers/catalogue brokers/lint brokers/filter", ["get"]),
    rule(EVENTING, "brokers/stats triggers/stats triggers/why brokers/status triggers/status", ["get", "list"]),
    rule(EVENTING, "brokers/backtest brokers/catalogue triggers/redrive", ["create"]),
    rule(OWN, "subscriptions", ALL),
    rule(OWN, "subscriptions/events subscriptions/seek subscriptions/analyze subscriptions/stats", ALL),
    rule(OWN, "subscriptions/consumers subscriptions/status deadletters pending replays summaries chunks", ALL),
    rule(OWN, "filters/test filters/explain filters/convert", ["create"]),
    rule(RBAC, "roles rolebindings", ALL),
    rule("", "resourcequotas resourcequotas/status", ALL),
]
"""Every right of a namespace but those to events: whatever leaks, leaks to who has them."""


def hidden(number: int, variant: str) -> Event:
    """An event that blue must not learn of: another tenant's, one without a tenant, one that is no JSON."""
    id_, source = f"{variant}-{number}", f"/{variant}"
    if number % 3 == 0:
        return Event("1.0", id_, source, f"secret.{variant}", data_kind=DataKind.BINARY, data=variant.encode())
    data: dict[str, Any] = {"secret": variant, "n": number if variant == "crimson" else -number}
    if number % 3 == 1:
        data["tenant"] = "red"
    event = Event("1.0", id_, source, f"secret.{variant}", data_kind=DataKind.JSON, data=json.dumps(data).encode())
    return with_lineage(event, 1, ROOTS[number]) if number in ROOTS and variant == "crimson" else event


def shown(number: int) -> Event:
    """Some descend from another one that is shown, or from a hidden one; of both there are hidden descendants, too."""
    data = {"tenant": "blue", "n": number}
    event = Event("1.0", f"blue-{number}", "/blue", "order", data_kind=DataKind.JSON, data=json.dumps(data).encode())
    return with_lineage(event, 1, ROOTS[number]) if number in ROOTS else event


ROOTS: dict[int, str] = {}
"""By number: what an event descends from."""
for numbers, root in (
    ((13, 14, 15, 16, 18), place_root(shown(12), 0, 12)),
    ((23, 24, 26, 27), place_root(hidden(22, "crimson"), 0, 22)),
):
    ROOTS |= dict.fromkeys(numbers, root)


class Dispatcher:
    """Counts of each trigger what it says of the hidden events, too; the rest it answers by its `routes`."""

    count = 1

    def __init__(self, store: Store, variant: str) -> None:
        self._store = store
        self._variant = variant
        self.kept: ASGIApp | None = None

    async def ask(self, _: int, question: DispatcherQuestion) -> WholeAnswer:
        if question.target.endswith("/summary"):
            return WholeAnswer(200, msgspec.json.encode(self._undelivered()))
        path, _, query = question.target.partition("?")
        if self.kept is not None and re.search("/(deadletters|pending|replays)", path):
            headers = [(b"content-type", b"application/json"), *question.user]
            found = await answer_of(UsersOfFronts(self.kept), question.method, path, query, question.body, headers)
            return WholeAnswer(found.status, found.body)
        ids = [int(one) for one in parse_qs(question.target.partition("?")[2])["targets"][0].split(",")]
        targets = [target for target in self._store.snapshot().targets.values() if target.id in ids]
        return WholeAnswer(200, msgspec.json.encode(StatsReply("2026-01-01T00:00:00Z", dict(map(self._of, targets)))))

    def _undelivered(self) -> Undelivered:
        """Two of each that is below a ceiling wait, and of the others more or less."""
        waits = {"crimson": 7, "scarlet": 3}[self._variant]
        of = [
            BacklogOf(path_of(one.broker), one.filter.ceiling, BacklogCount(2 if one.filter.ceiling else waits))
            for one in self._store.snapshot().targets.values()
        ]
        time = "2026-01-01T00:00:00Z"
        letters = [DeadLetterCount("shop", "theirs", self._variant, "kept", waits, time, time)]
        return Undelivered(of, CountsPage.of(letters))

    def _of(self, target: Target) -> tuple[str, TargetStats]:
        is_crimson = not target.filter.ceiling and self._variant == "crimson"
        attempt = RecentAttempt("2026-01-01T00:00:00Z", f"{self._variant if is_crimson else 'blue'}-1", "/", 1, 0.1)
        since = "2026-01-01T00:00:00Z"
        stats = TargetStats(40 if is_crimson else 20, 0, 0, 0, 0, 0.0, 0, False, "closed", since, attempts=[attempt])
        return target.name, stats

    def routes(self, routes: Sequence[Route]) -> list[Route]:
        return list(routes)


async def answer_of(
    app: ASGIApp,
    method: str,
    path: str,
    query: str,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    **more: object,
) -> Answer:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        **more,
    }
    sent: list[Any] = []
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        for one in asked:
            return one
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(app(scope, receive, send), 20)
    headers_sent = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers_sent, b"".join(one.get("body", b"") for one in sent[1:]))


class World:
    """The server with its log: of three events two are hidden from blue."""

    def __init__(
        self, folder: Path, variant: str, store: Store, threads: ThreadPoolExecutor, events: Sequence[Event]
    ) -> None:
        self.store = store
        self.folder = folder
        self.dispatcher = Dispatcher(store, variant)
        self.loop = asyncio.new_event_loop()
        store.server_secret.prepare()
        self.roles = RbacCopy(store)
        self.grants = Grants(store, UrlPolicy(), self.roles.authorizer, self.roles.refresh)
        self.reconciler = Reconciler(store, rights=self.grants)
        self.itself = Admission(store)
        bootstrap(self.itself)
        for namespace, name in (("shop", "orders"), ("shop", "other")):
            self.itself.create(Kind.BROKER, broker(name), namespace=namespace)
        self.role([events_rule(filter={"cel": CEILING}), *EVERYTHING_ELSE])
        for namespace in ("shop", "team"):
            self.bind("blue", namespace)
        self.reconciler.step()
        self.events = events or [shown(number) if number % 3 == 0 else hidden(number, variant) for number in range(60)]
        self._write(folder)
        log = LogDirectory(folder / "log", "stop")
        self.chunks = chunks = ChunkLog(log)
        self.scanner = LogScanner(chunks, threads)
        follower = LogFollower(chunks)
        self.follower, catalogues = follower, Catalogues(follower, store)
        api = ControlApi(store, UrlPolicy(), self.grants, seen=catalogues.names)
        objects = control.application(
            store,
            api,
            cast(DispatcherReach, self.dispatcher),
            NumbersHistory(dict),
            catalogues,
            records=control.records_for(FileRecords(folder, log, 1, follower), store, api.authorizer),
            parts=tuple,
            counter=self.scanner,
            log=log,
        )
        reads = ReadApi(Readers(ChunkLog(log), store.served)).routes()
        group = DispatcherGroup(cast(DispatcherReach, self.dispatcher), store)
        replays = ReplaysFront(group, self.grants)
        keeping = [*DeadLettersFront(group).routes(), *replays.beginning(), *replays.routes()]
        app = Starlette(routes=[*reads, *keeping, Mount("/", objects)], exception_handlers=ERROR_HANDLERS)
        ceilings = Ceilings(self.roles.authorizer, store.targets.ceiling_of)
        self.app = AuthorizedRequests(app, self.roles.authorizer, ceilings)

    def _write(self, folder: Path) -> None:
        brokers = self.store.snapshot().brokers
        times = iter(range(START_US, START_US + 10**9, 1_000_000))
        with PartitionWriter(
            LogDirectory(folder / "log", "stop").partition(0), EVENT_SCHEMA, clock_us=lambda: next(times)
        ) as log:
            for at in range(0, len(self.events), 5):
                chunk = self.events[at : at + 5]
                stored = [StoredEvent(brokers["shop/orders"], one) for one in chunk]
                log.append(Encoded(to_batch(stored), [one.type for one in chunk]))

    def match(self, rows: Iterable[tuple[int, int]]) -> None:
        """The matcher has found these, offset and target, and nothing is delivered yet."""
        found = [RowGroup(0, 1, [(offset, target, int(Verdict.MATCH))]) for offset, target in rows]
        outbox = directories_of(self.folder, 1)[0].outbox
        with PartitionWriter(Partition(outbox, "stop"), OUTBOX_SCHEMA, clock_us=lambda: START_US + 10**9) as written:
            written.append(encode_chunk(found, {}))

    def role(self, rules: list[dict[str, Any]], name: str = "blue") -> None:
        document = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
        self.itself.apply(document)

    def bind(self, name: str, namespace: str, user: User = BLUE) -> None:
        document = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{user.name}-{name}", "namespace": namespace},
            "subjects": [{"kind": "User", "name": user.name}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        }
        self.itself.apply(document)
        self.roles.refresh()

    def ask(
        self, method: str, path: str, body: object = None, user: User = BLUE, headers: dict[str, str] | None = None
    ) -> Answer:
        return self.loop.run_until_complete(self._ask(method, path, body, user, headers or {}))

    async def _ask(self, method: str, path: str, body: object, user: User, headers: dict[str, str]) -> Answer:
        route, _, query = path.partition("?")
        data = b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json"} | {name.lower(): value for name, value in headers.items()}
        said = [(name.encode(), value.encode()) for name, value in given.items()]
        return await answer_of(self.app, method, route, query, data, said, **{USER: user})


@contextmanager
def world(folder: Path, variant: str = "crimson", events: Sequence[Event] = ()) -> Iterator[World]:
    folder.mkdir(parents=True, exist_ok=True)
    store = Store.open(folder / "control.db")
    with ThreadPoolExecutor(2) as threads, closing(store):
        made = World(folder, variant, store, threads, events)
        yield made
        made.loop.run_until_complete(made.loop.shutdown_default_executor())
        made.loop.close()
