"""Secrets as objects of the API: the real kubectl, hostile ones, encryption at rest, and another key."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.backend.kafka.objects import OBJECT_ROWS
from headgate.backend.kafka.rows import tables
from headgate.objects.api.admission import Admission
from headgate.objects.store import writes
from headgate.objects.store.store import Store
from headgate.settings import Settings
from headgate.storage.keyring import (
    Keyring,
    NoSecretsKeyError,
    SealedError,
    SecretsKeyError,
    head_of,
    keyring_of,
    parsed,
)
from headgate_api.limits import SECRET_BYTES_MAX, SECRETS_RESEALED_MAX
from headgate_api.objects.errors import QuotaError
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.certificates import Authority
from tests.objects.support import Kubectl, Server, running

PATH = "/api/v1/namespaces/default/secrets"
CLEAR = "correct-horse-battery-staple"
KEYS = Keyring({"k1": bytes(range(32))})


def b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def secret(name: str = "s1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, **fields}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, keys=KEYS) as one:
        yield one


def files_with(folder: Path, text: str | bytes) -> list[str]:
    """Files that hold a text, as it is or in Base64 at any place of it."""
    raw = text.encode() if isinstance(text, str) else text
    forms = {raw, *(base64.b64encode(b" " * shift + raw)[4:-4] for shift in range(3))}
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in found if any(form in path.read_bytes() for form in forms)]


def test_kubectl_makes_shows_changes_and_deletes_them(kubectl: Kubectl, server: Server, tmp_path: Path) -> None:
    assert kubectl("create", "secret", "generic", "crm", f"--from-literal=token={CLEAR}") == "secret/crm created\n"
    heads, row = kubectl("get", "secrets").splitlines()
    assert heads.split() == ["NAME", "TYPE", "DATA", "SIZE", "AGE"]
    assert row.split()[:4] == ["crm", "Opaque", "1", str(len(CLEAR))]
    shown = json.loads(kubectl("get", "secret", "crm", "-o", "json"))
    assert base64.b64decode(shown["data"]["token"]).decode() == CLEAR
    described = kubectl("describe", "secret", "crm")
    assert f"token:  {len(CLEAR)} bytes" in described
    assert CLEAR not in described
    pair = Authority(tmp_path / "ca").issue("client")
    kubectl("create", "secret", "tls", "pair", f"--cert={pair.certificate}", f"--key={pair.key}")
    assert json.loads(kubectl("get", "secret", "pair", "-o", "json"))["type"] == "kubernetes.io/tls"
    kubectl("create", "secret", "docker-registry", "hub", "--docker-username=u", "--docker-password=p")
    assert (
        '"auths"'
        in base64.b64decode(
            json.loads(kubectl("get", "secret", "hub", "-o", "json"))["data"][".dockerconfigjson"]
        ).decode()
    )
    kubectl("patch", "secret", "crm", "-p", json.dumps({"stringData": {"more": "x"}}))
    kubectl("patch", "secret", "crm", "--type=merge", "-p", json.dumps({"data": {"token": b64("new")}}))
    assert json.loads(kubectl("get", "secret", "crm", "-o", "json"))["data"] == {"token": b64("new"), "more": b64("x")}
    kubectl("label", "secret", "crm", "team=a")
    assert kubectl("get", "secrets", "-l", "team=a", "-o", "name") == "secret/crm\n"
    assert "Values in Base64" in kubectl("explain", "secret.data")
    assert kubectl("delete", "secret", "crm") == 'secret "crm" deleted\n'
    assert 'secrets "crm" not found' in kubectl("get", "secret", "crm", fails=True)


@pytest.mark.slow  # the test above shows the rest
def test_kubectl_applies_them_both_ways_and_watches_them(kubectl: Kubectl, server: Server) -> None:
    manifest = json.dumps(secret(data={"a": b64(CLEAR)}))
    assert kubectl("apply", "-f", "-", stdin=manifest) == "secret/s1 created\n"
    assert kubectl("apply", "-f", "-", stdin=manifest) == "secret/s1 unchanged\n"
    assert kubectl("apply", "-f", "-", stdin=json.dumps(secret(stringData={"a": "2"}))) == "secret/s1 configured\n"
    both = json.dumps(secret("s2", data={"a": b64("1"), "b": b64("2")}))
    assert kubectl("apply", "--server-side", "-f", "-", stdin=both) == "secret/s2 serverside-applied\n"
    one = json.dumps(secret("s2", data={"a": b64("1")}))
    kubectl("apply", "--server-side", "-f", "-", stdin=one)
    assert json.loads(kubectl("get", "secret", "s2", "-o", "json"))["data"] == {"a": b64("1")}
    with server.stream(f"{PATH}?watch=1&timeoutSeconds=30") as stream:
        lines = [json.loads(stream.readline()) for _ in range(2)]
        assert [(line["type"], line["object"]["data"]["a"]) for line in lines] == [
            ("ADDED", b64("2")),
            ("ADDED", b64("1")),
        ]
        server.merge(f"{PATH}/s2", {"data": {"a": b64(CLEAR)}})
        line = json.loads(stream.readline())
        assert (line["type"], line["object"]["data"]["a"]) == ("MODIFIED", b64(CLEAR))
    assert kubectl("delete", "namespace", "default", fails=True)
    server.request("POST", PATH.replace("default", "gone"), secret())
    kubectl("delete", "namespace", "gone")
    assert server.request("GET", f"{PATH.replace('default', 'gone')}/s1").status == 404


def test_no_file_holds_a_value_in_the_clear(server: Server, kubectl: Kubectl, tmp_path: Path) -> None:
    manifest = json.dumps(secret(stringData={"a": CLEAR}))
    kubectl("apply", "-f", "-", stdin=manifest)  # with an annotation that repeats the value
    server.merge(f"{PATH}/s1", {"stringData": {"b": f"{CLEAR}!"}})
    assert json.loads(server.request("GET", f"{PATH}/s1").body)["metadata"]["annotations"]
    server.request("DELETE", f"{PATH}/s1")
    assert (tmp_path / "control.db-wal").stat().st_size > 0
    assert files_with(tmp_path, CLEAR) == []
    (tmp_path / "probe").write_text(b64(f"  {CLEAR}"))
    assert files_with(tmp_path, CLEAR) == ["probe"]


def test_no_record_of_the_topic_holds_a_value_in_the_clear(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db", keys=KEYS)
    Admission(store).create(Kind.SECRET, secret(stringData={"a": CLEAR}))
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "control.db")) as connection:
        found = tables(connection, OBJECT_ROWS)
        (version,) = connection.execute("SELECT version FROM history WHERE kind = 'Secret'").fetchone()
        records = [
            found["objects"].record(connection, ("Secret", "default", "s1")),
            found["history"].record(connection, (version,)),
        ]
    for record in records:
        assert record.value is not None
        assert CLEAR.encode() not in record.value
        assert b64(CLEAR).encode() not in record.value


BAD: list[tuple[dict[str, Any], str]] = [
    (secret("UPPER"), "metadata.name"),
    (secret(data={"a/b": b64("x")}), "data[a/b]"),
    (secret(data={"..": b64("x")}), "data[..]"),
    (secret(data={"a" * 254: b64("x")}), "data[a"),
    (secret(data={"a": f"{CLEAR}"}), "must be Base64"),
    (secret(data={"a": 17}), "data"),
    (secret(stringData={"a": ["x"]}), "stringData"),
    (secret(data={"a": b64(b"x" * (SECRET_BYTES_MAX // 2)), "b": b64(b"x" * (SECRET_BYTES_MAX // 2 + 1))}), "Too long"),
    (secret(type="kubernetes.io/tls", data={"tls.crt": ""}), "data[tls.key]"),
    (secret(type="kubernetes.io/dockerconfigjson", data={".dockerconfigjson": b64("[]")}), "a JSON object"),
    (secret(type="kubernetes.io/basic-auth"), "data[username]"),
    (secret(type="kubernetes.io/service-account-token"), "service accounts"),
    (secret(type="a\nb"), "type"),
    (secret(spec={}), "unknown field"),
]


@pytest.mark.parametrize(("document", "words"), BAD, ids=[words for _, words in BAD])
def test_hostile_ones_are_refused_by_field_and_without_a_value(
    server: Server, document: dict[str, Any], words: str
) -> None:
    answer = server.request("POST", PATH, document)
    assert answer.status in (400, 422), answer.body
    assert words in answer.json["message"]
    assert CLEAR not in answer.json["message"]


def test_binary_large_and_immutable_ones(server: Server) -> None:
    whole = os.urandom(SECRET_BYTES_MAX)
    assert server.request("POST", PATH, secret("large", data={"a": b64(whole)})).status == 201
    assert base64.b64decode(server.request("GET", f"{PATH}/large").json["data"]["a"]) == whole
    assert server.request("POST", PATH, raw=b" " * (3 << 20) + b"{}").status == 413
    server.request("POST", PATH, secret(data={"a": b64("1")}, immutable=True))
    for patch in ({"data": {"a": b64("2")}}, {"immutable": False}, {"type": "other"}):
        answer = server.merge(f"{PATH}/s1", patch)
        assert answer.status == 422
        assert "immutable" in answer.json["message"]
    assert server.merge(f"{PATH}/s1", {"metadata": {"labels": {"a": "b"}}}).status == 200


def test_a_namespace_has_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writes._NAMESPACE_QUOTAS, Kind.SECRET, 2)
    store = Store.open(tmp_path / "control.db", keys=KEYS)
    admission = Admission(store)
    for name in ("a", "b"):
        admission.create(Kind.SECRET, secret(name))
    with pytest.raises(QuotaError, match="2 secrets in the namespace default"):
        admission.create(Kind.SECRET, secret("c"))
    admission.create(Kind.SECRET, secret("c"), namespace="other")
    store.close()


def test_without_a_key_none_is_stored(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db")
    with pytest.raises(NoSecretsKeyError) as caught:
        Admission(store).create(Kind.SECRET, secret(stringData={"a": CLEAR}))
    assert "--secrets-key-file" in caught.value.hint
    assert store.page(Kind.SECRET).items == ()
    store.close()
    (tmp_path / "other").mkdir()
    with running(tmp_path / "other") as server:
        answer = server.request("POST", PATH, secret())
        assert (answer.status, "no key" in answer.json["message"]) == (403, True)


def sealed(folder: Path) -> list[bytes]:
    with contextlib.closing(sqlite3.connect(folder / "control.db")) as connection:
        rows = connection.execute(
            "SELECT body FROM objects WHERE kind = 'Secret' UNION ALL SELECT body FROM history WHERE kind = 'Secret'"
        ).fetchall()
    return [body for (body,) in rows]


def test_another_first_key_encrypts_all_anew_and_then_the_old_one_may_go(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db", keys=KEYS)
    admission = Admission(store)
    count = SECRETS_RESEALED_MAX + 3
    for number in range(count):
        admission.create(Kind.SECRET, secret(f"s{number}", stringData={"a": f"{CLEAR}{number}"}))
    since = store.counters.version()
    store.close()
    old, new = KEYS, bytes(reversed(range(32)))
    assert {head_of(body).key for body in sealed(tmp_path)} == {"k1"}
    both = Keyring({"k2": new, "k1": bytes(range(32))})
    store = Store.open(tmp_path / "control.db", keys=both)
    store.secrets.check_keys()
    slices, after = 0, 0
    while after is not None:
        after, _ = store.secrets.reseal(after)
        slices += 1
    assert slices == 3
    assert store.counters.version() == since  # nobody's watch sees a change
    store.close()
    assert {head_of(body).key for body in sealed(tmp_path)} == {"k2"}
    store = Store.open(tmp_path / "control.db", keys=Keyring({"k2": new}))
    store.secrets.check_keys()
    found = store.get(ObjectKey(Kind.SECRET, "default", "s7"))
    assert base64.b64decode(found.data["a"]).decode() == f"{CLEAR}7"  # type: ignore[union-attr]
    assert len(store.changes(Kind.SECRET, 0).items) == count
    store.close()
    store = Store.open(tmp_path / "control.db", keys=old)
    with pytest.raises(SecretsKeyError, match=f"{count} by 'k2'"):
        store.secrets.check_keys()
    with pytest.raises(SealedError, match="'k2'"):
        store.get(ObjectKey(Kind.SECRET, "default", "s7"))
    store.close()


def test_a_sealed_text_opens_for_its_own_object_alone() -> None:
    made = KEYS.seal(b"text", path="a/b", uid="1")
    assert KEYS.open(made, path="a/b") == b"text"
    assert KEYS.seal(b"text", path="a/b", uid="1") != made
    with pytest.raises(SealedError, match="a/c"):
        KEYS.open(made, path="a/c")
    for changed in (made[:-1], made + b"x", made.replace(b'"uid":"1"', b'"uid":"2"'), b"junk", b"", b'{"sealed":1}\nx'):
        with pytest.raises(SealedError):
            KEYS.open(changed, path="a/b")
    assert CLEAR not in repr(Keyring({CLEAR[:5]: CLEAR.encode()[:32].ljust(32)}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "0 keys"),
        (b"k1", "line 1"),
        (b"k1:AAAA", "line 1"),
        (b"k1:****", "line 1"),
        (f"# note\nk1:{b64(bytes(32))}\nk1:{b64(bytes(32))}".encode(), "two keys"),
        (f"a b:{b64(bytes(32))}".encode(), "letters"),
        (b"\xff:x", "line 1"),
        ("\n".join(f"k{n}:{b64(bytes(32))}" for n in range(65)).encode(), "65 keys"),
    ],
    ids=str,
)
def test_files_that_are_no_keys(text: bytes, words: str) -> None:
    with pytest.raises(SecretsKeyError, match=words) as caught:
        parsed(text, "the file")
    assert b64(bytes(32))[:8] not in str(caught.value)


def test_keys_come_from_a_file_or_a_command(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\nnew: {b64(bytes(32))}\nold:{b64(bytes(range(32)))}\n")
    found = keyring_of(Settings(secrets_key_file=file))
    assert found is not None
    assert (found.first, "old" in found) == ("new", True)
    found = keyring_of(Settings(secrets_key_command=f"cat '{file}'"))
    assert found is not None
    assert found.first == "new"
    assert keyring_of(Settings()) is None
    for settings, words in (
        (Settings(secrets_key_file=tmp_path / "none"), "No such file"),
        (Settings(secrets_key_command="false"), "status 1"),
        (Settings(secrets_key_command="/no/such/program"), "cannot be run"),
        (Settings(secrets_key_command="cat 'open"), "cannot be run"),
        (Settings(secrets_key_command="cat /dev/zero --no-such-option"), "status"),
        (Settings(secrets_key_file=file, secrets_key_command="true"), "exclude"),
    ):
        with pytest.raises(SecretsKeyError, match=words):
            keyring_of(settings)
