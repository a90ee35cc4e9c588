"""Several objects applied together: one transaction, and each is judged as if it came alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.authorizer import ForbiddenError
from headgate.auth.rules import Attributes
from headgate.auth.user import authenticated
from headgate.objects.api.admission import Admission, Admitted, TriedFilters
from headgate.objects.api.bootstrap import bootstrap
from headgate.objects.api.grants import Grants
from headgate.objects.api.together import Result, TogetherApi
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.managers import Manager, WriteOptions
from headgate.objects.store.store import Store
from headgate.objects.views.copies import RbacCopy
from headgate.storage.commit import SqliteCommitter
from headgate_api.errors import HeadgateError
from headgate_api.limits import APPLY_OBJECTS_MAX, OBJECT_BYTES_MAX
from headgate_api.objects.errors import ExceededQuotaError, InvalidObjectError, MalformedObjectError, StaleObjectError
from headgate_api.objects.kinds import Kind, Object, ObjectKey
from headgate_cli import objects as commands
from headgate_cli.client import request
from tests.objects.support import Server, broker, trigger
from tests.objects.test_cli_objects import run
from tests.objects.test_quotas import TRIGGERS, limiting

BY = Manager("headgate")
PATH = "/apis/headgate.dev/v1/namespaces/default/triggerapplies"


class Commits(SqliteCommitter):
    count = 0

    def commit(self, connection: sqlite3.Connection) -> None:
        self.count += 1
        super().commit(connection)


@pytest.fixture
def commits(tmp_path: Path) -> Commits:
    return Commits(tmp_path / "control.db")


@pytest.fixture
def store(tmp_path: Path, commits: Commits) -> Iterator[Store]:
    opened = Store.open(tmp_path / "control.db", committer=commits)
    yield opened
    opened.close()


def together(store: Store, grants: Grants | None = None) -> TogetherApi:
    grants = grants or Grants(store, UrlPolicy())
    return TogetherApi(Admission(store, grants=grants), grants, TriedFilters(store, grants.authorizer))


def applied(store: Store, *documents: object, **options: Any) -> list[Result]:
    return together(store).apply(Kind.TRIGGER, documents, WriteOptions(BY, **options), namespace="default")


def words(results: list[Result]) -> list[str]:
    return [one.outcome if isinstance(one, Admitted) else type(one).__name__ for one in results]


def stored(store: Store, name: str) -> Object:
    return store.get(ObjectKey(Kind.TRIGGER, "default", name))


def wanting(name: str, type_: str = "a") -> dict[str, Any]:
    return trigger(name, filter={"cel": f'ce.type == "{type_}"'})


def test_all_in_one_transaction(store: Store, commits: Commits) -> None:
    before = commits.count
    documents = [wanting(f"t{number}", f"type-{number}") for number in range(20)]
    assert words(applied(store, *documents)) == ["created"] * 20
    assert commits.count == before + 1
    assert words(applied(store, *documents)) == ["unchanged"] * 20
    assert words(applied(store, wanting("t0", "b"), wanting("new"))) == ["configured", "created"]
    table = store.snapshot()
    assert {one.name: one.filter.cel for one in table.targets.values()}["default/t0"] == 'ce.type == "b"'
    assert (len(table.targets), table.generation) == (21, 22)


def test_together_and_alone_make_the_same_objects(store: Store, tmp_path: Path) -> None:
    documents = [wanting("t1"), trigger("t2", broker="none"), trigger("t3", delivery={"retry": 3})]
    applied(store, *documents)
    other = Store.open(tmp_path / "other.db")
    for document in documents:
        Admission(other).create(Kind.TRIGGER, document, WriteOptions(BY))
    there = [json.loads(one.body) for one in store.page(Kind.TRIGGER).items]
    alone = [json.loads(one.body) for one in other.page(Kind.TRIGGER).items]
    for one in (*there, *alone):
        one["metadata"] = {key: value for key, value in one["metadata"].items() if key not in ("uid", "managedFields")}
        one["metadata"].pop("creationTimestamp")
        for condition in one["status"]["conditions"]:
            condition.pop("lastTransitionTime")
    assert there == alone
    other.close()


def test_what_is_wrong_with_one_is_no_matter_of_the_others(store: Store) -> None:
    Admission(store).create(Kind.TRIGGER, wanting("old"))
    Admission(store).create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, 3))
    stale = wanting("old", "b")
    stale["metadata"]["resourceVersion"] = "1"
    results = applied(
        store,
        wanting("t1"),
        trigger("bad", filter={"cel": "ce.type =="}),
        "no object",
        {**wanting("t2"), "spce": {}},
        stale,
        broker("t3"),
        wanting("t4"),
        wanting("t5"),
    )
    assert words(results) == [
        "created",
        InvalidObjectError.__name__,
        MalformedObjectError.__name__,
        MalformedObjectError.__name__,
        StaleObjectError.__name__,
        MalformedObjectError.__name__,
        "created",
        ExceededQuotaError.__name__,
    ]
    assert [item.key.name for item in store.page(Kind.TRIGGER).items] == ["old", "t1", "t4"]
    assert stored(store, "old").metadata.generation == 1


def test_one_name_twice(store: Store) -> None:
    results = applied(store, wanting("t1", "a"), wanting("t2"), wanting("t1", "b"), wanting("t1", "b"))
    assert words(results) == ["created", "created", "configured", "unchanged"]
    assert stored(store, "t1").metadata.generation == 2


@pytest.mark.parametrize("between", ["create", "replace", "delete"])
def test_another_writer_comes_between(store: Store, monkeypatch: pytest.MonkeyPatch, between: str) -> None:
    admission = Admission(store)
    if between != "create":
        admission.create(Kind.TRIGGER, wanting("t1"))
    key, found, calls = ObjectKey(Kind.TRIGGER, "default", "t1"), store.found, []

    def late(keys: Any) -> Any:
        there = found(keys)
        if not calls:
            calls.append(between)
            if between == "create":
                admission.create(Kind.TRIGGER, wanting("t1", "theirs"))
            elif between == "replace":
                admission.replace(key, wanting("t1", "theirs"))
            else:
                store.delete(key)
        return there

    monkeypatch.setattr(store, "found", late)
    outcome = "created" if between == "delete" else "configured"
    assert words(applied(store, wanting("t1", "ours"), wanting("t2"))) == [outcome, "created"]
    assert [one.filter.cel for one in store.snapshot().targets.values() if one.name == "default/t1"] == [
        'ce.type == "ours"'
    ]


def test_nothing_is_stored_by_a_dry_run(store: Store) -> None:
    applied(store, wanting("t1"))
    version = store.counters.version()
    assert words(applied(store, wanting("t1", "b"), wanting("t2"), dry_run=True)) == ["configured", "created"]
    assert store.counters.version() == version


def test_what_a_document_does_not_name_is_kept(store: Store) -> None:
    first = wanting("t1")
    first["metadata"] |= {"labels": {"a": "1"}, "annotations": {"b": "2"}}
    applied(store, first)
    second = wanting("t1")
    second["metadata"]["labels"] = {"c": "3"}
    assert words(applied(store, second)) == ["configured"]
    meta = stored(store, "t1").metadata
    assert (meta.labels["a"], meta.labels["c"], meta.annotations["b"]) == ("1", "3", "2")
    erasing = json.loads(store.page(Kind.TRIGGER).items[0].body)
    erasing["metadata"] = {"name": "t1", "annotations": erasing["metadata"]["annotations"]}
    erasing["spec"].pop("filter")
    assert words(applied(store, erasing)) == [InvalidObjectError.__name__]


def test_who_may_change_may_not_therefore_create(store: Store) -> None:
    roles = RbacCopy(store)
    grants = Grants(store, UrlPolicy(), roles.authorizer, roles.refresh)
    admission = Admission(store)
    bootstrap(admission)
    admission.create(Kind.TRIGGER, wanting("old"))
    rules = [{"apiGroups": ["eventing.knative.dev"], "resources": ["triggers"], "verbs": ["patch"]}]
    base = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "patcher"}}
    admission.create(Kind.ROLE, {**base, "kind": "Role", "rules": rules})
    binding = {"subjects": [{"kind": "User", "name": "eve"}], "roleRef": {"kind": "Role", "name": "patcher"}}
    admission.create(Kind.ROLE_BINDING, {**base, "kind": "RoleBinding", **binding})
    roles.refresh()
    eve = Manager("headgate", user=authenticated("eve"))
    assert roles.authorizer.allowed(
        authenticated("eve"), Attributes("patch", "eventing.knative.dev", "triggers", "", "default")
    ).allowed
    documents = [wanting("old", "b"), wanting("new")]
    results = together(store, grants).apply(Kind.TRIGGER, documents, WriteOptions(eve), namespace="default")
    assert words(results) == ["configured", ForbiddenError.__name__]
    assert stored(store, "old").metadata.annotations["eventing.knative.dev/lastModifier"] == "eve"


def test_over_http(server: Server) -> None:
    large = wanting("large")
    large["metadata"]["annotations"] = {"a": "x" * OBJECT_BYTES_MAX}
    answer = server.request("POST", PATH, {"items": [wanting("t1"), large, 7, wanting("t2")]})
    assert answer.status == 200
    first, too_large, none, last = answer.json["items"]
    assert (first, last["outcome"]) == ({"name": "t1", "outcome": "created"}, "created")
    assert (too_large["error"]["code"], none["error"]["code"]) == (413, 400)
    assert server.request("GET", server.path("triggers", "t2")).status == 200
    warned = server.request("POST", PATH, {"items": [trigger("t3", filter={"cel": "data.n > 1"})]}).json["items"][0]
    assert len(warned["warnings"]) == 1
    twice = json.dumps(wanting("t4"))[:-1].encode() + b',"spec":{}}'
    body = b'{"items":[%b,%b]}' % (twice, json.dumps(wanting("t5")).encode())
    first, second = server.request("POST", PATH, raw=body).json["items"]
    assert 'duplicate field "spec"' in first["error"]["message"]
    assert second["outcome"] == "created"
    lenient = server.request(
        "POST",
        f"{PATH}?fieldValidation=Warn",
        raw=b'{"items":[%b]}' % twice.replace(b"{}", b'{"subscriber":{"uri":"http://x/"}}'),
    )
    assert lenient.json["items"][0]["warnings"][0] == 'duplicate field "spec"'
    both = server.request("POST", PATH, raw=b'{"items":[%b],"items":[]}' % json.dumps(wanting("t6")).encode())
    assert (both.status, "items twice" in both.json["message"]) == (400, True)
    spaced = server.request("POST", PATH, raw=b' { "it\\u0065ms" : [ %b ] } ' % json.dumps(wanting("a:b")).encode())
    assert (spaced.status, len(spaced.json["items"])) == (200, 1)
    many = {"items": [wanting("x")] * (APPLY_OBJECTS_MAX + 1)}
    assert server.request("POST", PATH, many).status == 400
    assert server.request("POST", PATH, {"items": [], "more": 1}).status == 400
    assert server.request("POST", f"{PATH}?dryRun=All", {"items": [wanting("dry")]}).json["items"][0]["name"] == "dry"
    assert server.request("GET", server.path("triggers", "dry")).status == 404


def test_the_command_sends_many_in_a_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    def counted(url: str, method: str, path: str, **options: Any) -> Any:
        calls.append((method, path.partition("?")[0].rpartition("/")[2]))
        return request(url, method, path, **options)

    monkeypatch.setattr(commands, "request", counted)
    count = APPLY_OBJECTS_MAX + 10
    items = [wanting(f"t{number}") for number in range(count)]
    items.insert(5, broker("b1"))
    items.append(trigger("bad", filter={"cel": "1 +"}))
    done = run(server.url, "apply", "-f", "-", stdin=json.dumps({"kind": "List", "items": items}))
    assert done.exit_code == 1
    assert done.stdout.splitlines()[5] == "broker.eventing.knative.dev/b1 created"
    assert done.stdout.count(" created\n") == count + 1
    assert f"items[{count + 1}]: Trigger.eventing.knative.dev" in done.stderr
    assert calls == [("POST", "triggerapplies"), ("GET", "b1"), ("POST", "brokers"), *[("POST", "triggerapplies")] * 2]


def test_the_command_sends_one_by_one_what_is_refused_as_a_whole(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(url: str, method: str, path: str, **options: Any) -> Any:
        return request(url, method, path.replace("triggerapplies", "no-such-path"), **options)

    monkeypatch.setattr(commands, "request", refused)
    text = json.dumps({"kind": "List", "items": [wanting("t1"), trigger("bad", filter={"cel": "1 +"}), wanting("t2")]})
    done = run(server.url, "apply", "-f", "-", stdin=text)
    assert done.stdout.count(" created\n") == 2
    assert "items[1]" in done.stderr


def test_finalizers_of_a_file_take_the_place_of_those_that_are_there(server: Server) -> None:
    document = wanting("t1")
    document["metadata"]["finalizers"] = ["example.com/a"]
    run(server.url, "apply", "-f", "-", stdin=json.dumps(document))
    document["metadata"]["finalizers"] = ["example.com/b"]
    run(server.url, "apply", "-f", "-", stdin=json.dumps(document))
    metadata = server.request("GET", server.path("triggers", "t1")).json["metadata"]
    assert metadata["finalizers"] == ["example.com/b"]


def test_an_error_that_may_pass_is_one_of_the_whole_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Passing(HeadgateError):
        retriable = True

    def fail(*_: object) -> None:
        raise Passing("later")

    grants = Grants(store, UrlPolicy())
    monkeypatch.setattr(grants, "judge_create", fail)
    with pytest.raises(Passing):
        together(store, grants).apply(Kind.TRIGGER, [wanting("t1")], WriteOptions(BY), namespace="default")
