"""Triggers and subscriptions of brokers of other namespaces: who may have them, and what follows when he may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.auth.authorizer import ForbiddenError
from headgate.auth.user import User, authenticated
from headgate.objects.store.store import Store
from headgate_api.objects.errors import InvalidObjectError
from headgate_api.objects.kinds import BROKER_LABEL, SUBSCRIBER_ANNOTATION, Kind, ObjectKey, Trigger
from tests.objects.rights import RightsWorld, by
from tests.objects.support import trigger

ANN, BOB, EVE = (authenticated(name) for name in ("ann", "bob", "eve"))
KEY = ObjectKey(Kind.TRIGGER, "team-b", "t")
REF = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "namespace": "team-a", "name": "orders"}


class World(RightsWorld):
    """Team A has a broker; team B, bob and eve, may write its own triggers."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "team-a")

    def create(self, user: User, document: dict[str, Any]) -> Trigger:
        made = self.admission.create(Kind.TRIGGER, document, by(user), namespace="team-b").obj
        assert isinstance(made, Trigger)
        return made

    def read(self) -> Trigger:
        self.reconciler.step()
        found = self.store.get(KEY)
        assert isinstance(found, Trigger)
        return found

    def ready(self) -> tuple[bool, str]:
        """Whether its events are routed, and what its status says of its broker."""
        found = next(one for one in self.read().status.conditions if one.type == "BrokerReady")
        return self.store.snapshot().trigger(KEY.path) is not None, found.reason or found.status


def foreign(name: str = "t", **spec: object) -> dict[str, Any]:
    document = trigger(name, **spec)
    del document["spec"]["broker"]
    document["spec"]["brokerRef"] = dict(REF)
    return document


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_a_trigger_of_another_namespaces_broker(world: World) -> None:
    with pytest.raises(ForbiddenError, match=r'cannot knsubscribe resource "brokers".*namespace "team-a"'):
        world.create(BOB, foreign())
    world.bind("headgate:subscriber", "team-a", who=BOB.name)
    made = world.create(BOB, foreign())
    assert (made.broker_key, made.broker_name, made.spec.broker) == ("team-a/orders", "team-a/orders", "")
    assert BROKER_LABEL not in made.metadata.labels, "the label is of brokers of the same namespace"
    assert json.loads(made.metadata.annotations[SUBSCRIBER_ANNOTATION])["name"] == "bob"
    world.reconciler.step()
    assert world.ready() == (True, "True")
    target = world.store.snapshot().trigger("team-b/t")
    assert target is not None
    assert target.broker == world.store.snapshot().brokers["team-a/orders"]


def test_the_right_ends_and_comes_back(world: World) -> None:
    binding = world.bind("headgate:subscriber", "team-a", who=BOB.name)
    world.create(BOB, foreign())
    assert world.ready() == (True, "True")
    generation = world.store.snapshot().generation
    world.store.delete(binding)
    assert world.ready() == (False, "SubscribeForbidden")
    assert world.store.snapshot().generation > generation, "the matcher must let the filter go"
    labelled = {"metadata": {"labels": {"a": "b"}}}
    world.admission.merge(KEY, labelled)
    assert world.ready() == (False, "SubscribeForbidden"), "a write that asks for no right gives none"
    world.bind("headgate:subscriber", "team-a", who=BOB.name)
    assert world.ready() == (True, "True")


def test_several_with_one_right_of_which_one_came_later(world: World) -> None:
    """One that is routed and one that is not have the same right: both follow it."""
    binding = world.bind("headgate:subscriber", "team-a", who=BOB.name)
    world.create(BOB, foreign())
    world.store.delete(binding)
    assert world.ready() == (False, "SubscribeForbidden")
    binding = world.bind("headgate:subscriber", "team-a", who=BOB.name)
    world.create(BOB, foreign("later"))
    world.store.delete(binding)
    assert world.ready() == (False, "SubscribeForbidden")
    assert world.store.snapshot().trigger("team-b/later") is None


def test_who_changes_the_filter_needs_the_right_too(world: World) -> None:
    world.bind("headgate:subscriber", "team-a", who=BOB.name)
    world.create(BOB, foreign())
    wider = {"filter": {"cel": "true"}}
    with pytest.raises(ForbiddenError, match="knsubscribe"):
        world.admission.patch(KEY, lambda old: old | {"spec": old["spec"] | wider}, by(EVE))
    forged = json.dumps({"name": "root", "groups": ["system:masters"]})
    changed = world.admission.merge(KEY, {"metadata": {"annotations": {SUBSCRIBER_ANNOTATION: forged}}}).obj
    assert changed.metadata.annotations.get(SUBSCRIBER_ANNOTATION, "") != forged
    world.bind("headgate:subscriber", "team-a", who=EVE.name)
    made = world.admission.patch(KEY, lambda old: old | {"spec": old["spec"] | wider}, by(EVE)).obj
    assert json.loads(made.metadata.annotations[SUBSCRIBER_ANNOTATION])["name"] == "eve"


WRONG = [
    ({"broker": "orders"}, "spec.broker", "only one of broker, brokerRef"),
    ({"brokerRef": REF | {"name": ""}}, "spec.brokerRef.name", "RFC 1123"),
    ({"brokerRef": REF | {"name": "a/b"}}, "spec.brokerRef.name", "RFC 1123"),
    ({"brokerRef": REF | {"kind": "Channel"}}, "spec.brokerRef.kind", 'supported values: "Broker"'),
    ({"brokerRef": REF | {"apiVersion": "v2"}}, "spec.brokerRef.apiVersion", "supported values"),
    ({"brokerRef": REF | {"group": "messaging.knative.dev"}}, "spec.brokerRef.group", "supported values"),
    ({"brokerRef": REF | {"namespace": "Team A"}}, "spec.brokerRef.namespace", "RFC 1123"),
    ({"brokerRef": "orders"}, "spec.brokerRef", "expected"),
]


@pytest.mark.parametrize(("spec", "field", "detail"), WRONG, ids=[str(one[0]) for one in WRONG])
def test_what_is_wrong_is_named(world: World, spec: dict[str, Any], field: str, detail: str) -> None:
    document = foreign()
    document["spec"] |= spec
    with pytest.raises(InvalidObjectError) as refused:
        world.itself.create(Kind.TRIGGER, document, namespace="team-b")
    assert [cause.field for cause in refused.value.causes] == [field]
    assert detail.lower() in refused.value.causes[0].message.lower()


def test_its_broker_never_changes(world: World) -> None:
    world.itself.create(Kind.TRIGGER, foreign(), namespace="team-b")
    with pytest.raises(InvalidObjectError, match="immutable"):
        world.itself.merge(KEY, {"spec": {"brokerRef": {"namespace": "team-c"}}})


def test_one_of_the_same_namespace_is_as_named(world: World) -> None:
    document = foreign()
    document["spec"]["brokerRef"]["namespace"] = ""
    made = world.create(EVE, document)
    assert (made.broker_key, made.broker_name, made.is_foreign) == ("team-b/orders", "orders", False)
    assert made.metadata.labels[BROKER_LABEL] == "orders"
    assert json.loads(made.metadata.annotations[SUBSCRIBER_ANNOTATION])["name"] == "eve"
    assert world.store.snapshot().trigger(KEY.path) is None or not world.store.targets.takers()[0].forbidden


def test_a_manifest_of_the_server_needs_no_right(world: World) -> None:
    world.itself.create(Kind.TRIGGER, foreign(), namespace="team-b")
    assert world.ready() == (True, "True")


def test_triggers_of_a_broker_are_listed_with_those_of_others_last(world: World) -> None:
    for name in ("b", "a"):
        world.itself.create(Kind.TRIGGER, trigger(name, broker="orders"), namespace="team-a")
    for namespace in ("team-b", "a-team"):
        world.itself.create(Kind.TRIGGER, foreign(), namespace=namespace)
    key = ObjectKey(Kind.BROKER, "team-a", "orders")
    found, after = [], ""
    while page := world.store.targets.triggers_of(key, after, 1):
        found += page
        after = page[-1].path
    assert [one.path for one in found] == ["team-a/a", "team-a/b", "a-team/t", "team-b/t"]
