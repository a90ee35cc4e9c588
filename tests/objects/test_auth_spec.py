"""`spec.delivery.auth` and CA certificates: what is refused, and what a trigger says of its Secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.storage.keyring import Keyring
from headgate_api.errors import InvalidInputError
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.objects.support import broker, trigger
from tests.objects.test_status import T1, conditions, ready
from tests.objects.test_subscriptions import subscription


def test_credentials_keep_a_trigger_from_being_ready_until_their_secret_is_there(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "keyed.db", keys=Keyring({"k1": bytes(32)}))
    admission = Admission(store)
    reconciler = Reconciler(store)
    auth = {"auth": {"bearer": {"secretRef": {"name": "crm"}}}}
    admission.create(Kind.BROKER, broker("b", delivery={"deadLetterAuth": auth["auth"]}))
    admission.create(Kind.TRIGGER, trigger(delivery=auth))
    admission.create(Kind.TRIGGER, trigger("inherits", broker="b"))
    admission.create(Kind.TRIGGER, trigger("without"))
    store.counters.activate(store.desired_generation())
    reconciler.step()
    both = (T1, ObjectKey(Kind.TRIGGER, "default", "inherits"))

    def shown() -> set[tuple[str, str]]:
        reconciler.step()
        return {ready(store, key) for key in both}

    def put(**values: str) -> None:
        admission.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "crm"}, "stringData": values})

    assert shown() == {("False", "SecretNotFound")}
    assert conditions(store)["CredentialsResolved"].message == 'the Secret "crm" does not exist'
    put(other="x")
    assert shown() == {("False", "SecretKeyNotFound")}
    put(token="a\nb")
    assert shown() == {("False", "SecretValueInvalid")}
    put(token="abc")
    assert shown() == {("True", "")}
    admission.merge(T1, {"spec": {"delivery": {"auth": {"bearer": {"secretRef": {"name": "none"}}}}}})
    assert ready(store) == ("False", "SecretNotFound")  # from the very write on
    store.delete(ObjectKey(Kind.SECRET, "default", "crm"))
    assert shown() == {("False", "SecretNotFound")}
    other = ObjectKey(Kind.TRIGGER, "default", "without")
    assert ready(store, other) == ("True", "")
    assert "CredentialsResolved" not in conditions(store, other)
    store.close()


BAD_AUTHS: list[tuple[dict[str, Any], str]] = [
    ({"bearer": {}}, "bearer.secretRef.name"),
    ({"bearer": {"secretRef": {"name": "A B"}}}, "bearer.secretRef.name"),
    ({"bearer": {"secretRef": {"name": "a", "key": "a/b"}}}, "bearer.secretRef.key"),
    ({"bearer": {"secretRef": {"name": "a"}}, "basic": {"secretRef": {"name": "a"}}}, "auth.basic"),
    ({"header": {"name": "ce-id", "secretRef": {"name": "a"}}}, "header.name"),
    ({"header": {"name": "Host", "secretRef": {"name": "a"}}}, "header.name"),
    ({"header": {"name": "a b", "secretRef": {"name": "a"}}}, "header.name"),
    ({"header": {"name": "webhook-id", "secretRef": {"name": "a"}}}, "header.name"),
    ({"oauth2": {"secretRef": {"name": "a"}}}, "oauth2.tokenUrl"),
    ({"oauth2": {"secretRef": {"name": "a"}, "tokenUrl": "ftp://x/"}}, "oauth2.tokenUrl"),
    ({"oauth2": {"secretRef": {"name": "a"}, "tokenUrl": "http://u:p@x/"}}, "oauth2.tokenUrl"),
    ({"oauth2": {"secretRef": {"name": "a"}, "tokenUrl": "http://x/", "scopes": ["a b"]}}, "oauth2.scopes"),
    ({"oauth2": {"secretRef": {"name": "a"}, "tokenUrl": "http://x/", "CACerts": "x"}}, "oauth2.CACerts"),
    ({"oauth2": {"secretRef": {"name": "a"}, "tokenUrl": "http://x/", "clientAuthentication": "x"}}, "clientAuth"),
    ({"apiKey": {}}, "unknown field"),
]


@pytest.mark.parametrize(("auth", "words"), BAD_AUTHS, ids=[words for _, words in BAD_AUTHS])
def test_what_is_no_auth_is_refused(admission: Admission, auth: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)):
        admission.create(Kind.TRIGGER, trigger(delivery={"auth": auth}))
    subscriber = {"uri": "https://127.0.0.1:9/", "CACerts": "-----BEGIN CERTIFICATE-----\nx"}
    with pytest.raises(InvalidInputError, match=r"spec\.subscriber\.CACerts"):
        admission.create(Kind.TRIGGER, trigger(subscriber=subscriber))


def test_a_token_endpoint_is_not_this_server(store: Store) -> None:
    """Its answer would tell whether another team's broker exists."""
    admission = Admission(store, policy=UrlPolicy(own_url="http://127.0.0.1:8080"))
    for broker_of_others in ("there", "missing"):
        oauth = {"secretRef": {"name": "a"}, "tokenUrl": f"http://127.0.0.1:8080/other/{broker_of_others}"}
        with pytest.raises(InvalidInputError, match=r"tokenUrl.*grants no tokens"):
            admission.create(Kind.TRIGGER, trigger(delivery={"auth": {"oauth2": oauth}}))


def test_a_subscription_has_nobody_to_authenticate_to(admission: Admission) -> None:
    auth = {"bearer": {"secretRef": {"name": "a"}}}
    with pytest.raises(InvalidInputError, match=r"spec\.delivery\.auth.*deadLetterAuth"):
        admission.create(Kind.SUBSCRIPTION, subscription(delivery={"auth": auth}))
    sink = {"deadLetterSink": {"uri": "http://127.0.0.1:9/"}, "deadLetterAuth": auth}
    admission.create(Kind.SUBSCRIPTION, subscription(delivery=sink))
    (target,) = admission.store.snapshot().targets.values()
    assert target.delivery.dead_letter_auth is not None


def test_a_token_for_an_audience_is_the_only_one(admission: Admission) -> None:
    subscriber = {"uri": "https://127.0.0.1:9/", "audience": "https://crm.example/"}
    auth = {"auth": {"bearer": {"secretRef": {"name": "a"}}}}
    with pytest.raises(InvalidInputError, match=r"spec\.delivery\.auth\.bearer"):
        admission.create(Kind.TRIGGER, trigger(subscriber=subscriber, delivery=auth))
    admission.create(Kind.TRIGGER, trigger(subscriber=subscriber))
    (target,) = (admission.store.counters.activate(1), admission.store.snapshot())[1].targets.values()
    assert target.subscriber_audience == "https://crm.example/"
