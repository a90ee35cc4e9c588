"""Ceilings: filters of roles' rules, what they are joined to, and what follows when they change."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headgate.auth.authorizer import ForbiddenError
from headgate.auth.routes import READ, SUBSCRIBE
from headgate.auth.rules import Attributes
from headgate.auth.user import authenticated
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.objects.kinds.managers import Manager, WriteOptions
from headgate.objects.store.database import StoreUnavailableError
from headgate.objects.store.store import Store
from headgate.objects.views.copies import RbacCopy
from headgate_api.errors import InvalidInputError
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import RBAC_CEILING_CHARS_MAX
from headgate_api.objects.errors import InvalidObjectError
from headgate_api.objects.kinds import SUBSCRIBER_ANNOTATION, Kind, ObjectKey, Subscription, Trigger
from tests.objects.rights import RBAC, RightsWorld, by
from tests.objects.support import trigger

EVENTING = "eventing.knative.dev"
BLUE, EVE = authenticated("blue", ("crew",)), authenticated("eve")
CEILING = 'data.tenant == "blue"'
BROKER = "shop/orders"


def rule(resources: str, verbs: str, group: str = EVENTING, **more: object) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


def to_events(**more: object) -> dict[str, Any]:
    return rule("brokers brokers/events", "get knsubscribe", **more)


def event(type_: str = "order", **data: object) -> Event:
    return Event("1.0", "1", "/s", type_, data_kind=DataKind.JSON, data=json.dumps(data).encode())


class World(RightsWorld):
    def __init__(self, store: Store) -> None:
        super().__init__(store, "shop")

    def role(self, *rules: dict[str, Any], name: str = "blue") -> None:
        document = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": list(rules)}
        self.itself.apply(document)
        self.roles.refresh()

    def create(self, name: str = "t", user: Any = BLUE, namespace: str = "shop", **spec: Any) -> Any:
        document = trigger(name, **spec)
        if namespace == "shop":
            document["spec"]["broker"] = "orders"
        else:
            del document["spec"]["broker"]
            document["spec"]["brokerRef"] = {
                "apiVersion": f"{EVENTING}/v1",
                "kind": "Broker",
                "namespace": "shop",
                "name": "orders",
            }
        return self.admission.create(Kind.TRIGGER, document, by(user), namespace=namespace)

    def filter(self, path: str = "shop/t") -> Any:
        target = self.store.snapshot().trigger(path)
        assert target is not None
        return target.filter

    def read(self, path: str = "shop/t") -> Trigger:
        self.reconciler.step()
        found = self.store.get(ObjectKey(Kind.TRIGGER, *path.split("/")))
        assert isinstance(found, Trigger)
        return found

    def ceiling(self, user: Any = BLUE, right: Any = SUBSCRIBE) -> str:
        self.roles.refresh()
        return self.roles.authorizer.ceiling(user, right.on(BROKER))


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def takes(cel: str, one: Event) -> bool:
    return program(cel).evaluate(one).kind is OutcomeKind.TRUE


# --- the form -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"filter": {"cel": CEILING}},
        {"filter": {"attributes": {"tenant": "blue"}}},
        {"filter": {"cesql": "tenant = 'blue'"}},
        {"filter": {"jms": "tenant = 'blue'"}},
        {"filters": [{"exact": {"tenant": "blue"}}, {"not": {"prefix": {"type": "internal."}}}]},
    ],
)
def test_a_rule_says_its_ceiling_in_every_dialect(world: World, said: dict[str, Any]) -> None:
    world.role(to_events(**said))
    world.bind()
    assert world.ceiling()
    assert not world.roles.authorizer.allowed(BLUE, Attributes("get", EVENTING, "brokers").on(BROKER)).allowed
    stored = world.store.get(ObjectKey(Kind.CLUSTER_ROLE, "", "blue"))
    assert json.loads(json.dumps(said)) == {
        name: value
        for name, value in _plain(stored.rules[0]).items()
        if name in ("filter", "filters")  # type: ignore[union-attr]
    }


def _plain(one: Any) -> dict[str, Any]:
    import msgspec

    return dict(msgspec.json.decode(msgspec.json.encode(one)))


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        (to_events(filter={"cel": "data.n >"}), "rules[0].filter.cel", "ends too early"),
        (to_events(filter={"cel": "data.n + 1"}), "rules[0].filter.cel", "true or false"),
        (to_events(filter={"nosuch": "x"}), "rules[0].filter.nosuch", "unknown"),
        (to_events(filters=[{"exact": {}}]), "rules[0].filters[0].exact", ""),
        (to_events(filter={}), "rules[0].filter", "no ceiling"),
        (to_events(filter={"cel": "ce.id == '" + "x" * 20_000 + "'"}), "rules[0].filter.cel", "FILTER_CHARACTERS_MAX"),
        (rule("brokers", "get", filter={"cel": CEILING}), "rules[0].verbs", "events alone"),
        (rule("brokers/events", "get create", filter={"cel": CEILING}), "rules[0].verbs", "events alone"),
        (rule("brokers/events", "*", filter={"cel": CEILING}), "rules[0].verbs", "events alone"),
        (rule("*", "get knsubscribe", filter={"cel": CEILING}), "rules[0].resources", "events alone"),
        (rule("triggers", "get", filter={"cel": CEILING}), "rules[0].resources", "events alone"),
        (rule("brokers/events", "get", "*", filter={"cel": CEILING}), "rules[0].apiGroups", "events alone"),
        ({"nonResourceURLs": ["/metrics"], "verbs": ["get"], "filter": {"cel": CEILING}}, "rules[0].verbs", ""),
    ],
)
def test_a_ceiling_that_makes_no_sense_is_refused_with_its_place(
    world: World, wrong: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        world.role(wrong)
    causes = refused.value.causes if isinstance(refused.value, InvalidObjectError) else ()
    assert field in {one.field for one in causes}, causes
    assert said.lower() in " ".join(one.message.lower() for one in causes)


# --- what it means --------------------------------------------------------------------------------


def test_ceilings_of_several_rules_are_alternatives(world: World) -> None:
    world.role(to_events(filter={"cel": "data.a == 1"}))
    world.role(to_events(filter={"cel": "data.b == 2"}), name="b")
    world.bind()
    world.bind("b", kind="Group", who="crew")
    for right in (READ, SUBSCRIBE):
        cel = world.ceiling(right=right)
        assert [takes(cel, one) for one in (event(a=1), event(b=2), event(a=2), event())] == [True, True, False, False]


def test_ceilings_that_are_too_long_together_give_nothing(world: World) -> None:
    for number in range(2):
        text = " || ".join(f'data.n{number} == "{"x" * 100}{n}"' for n in range(25))
        assert len(text) < RBAC_CEILING_CHARS_MAX
        world.role(to_events(filter={"cel": text}), name=f"r{number}")
        world.bind(f"r{number}")
    assert world.ceiling() == "false"
    with pytest.raises(InvalidObjectError, match="RBAC_CEILING_CHARS_MAX"):
        world.role(to_events(filter={"cel": " || ".join(f'data.n == "{"x" * 100}{n}"' for n in range(45))}))


def test_a_rule_without_a_ceiling_gives_everything(world: World) -> None:
    world.role(to_events(filter={"cel": CEILING}))
    world.bind()
    assert world.ceiling() == CEILING
    binding = world.bind("headgate:viewer")
    assert (world.ceiling(right=READ), world.ceiling(right=SUBSCRIBE)) == ("", CEILING)
    world.store.delete(binding)
    world.bind("headgate:admin", kind="Group", who="crew")
    assert world.ceiling() == ""


def test_whoever_has_one_of_the_two_rights_has_its_ceiling_for_both(world: World) -> None:
    """Else a trigger of the broker's namespace, which needs no right to subscribe, would bring what reads do not."""
    world.role(rule("brokers/events", "get", filter={"cel": CEILING}))
    world.bind()
    assert (world.ceiling(right=READ), world.ceiling(right=SUBSCRIBE)) == (CEILING, CEILING)
    assert world.ceiling(EVE) == ""
    assert not world.roles.authorizer.has_ceilings(EVE, "")
    assert world.roles.authorizer.has_ceilings(BLUE, "")
    assert world.roles.authorizer.has_ceilings(BLUE, "shop")
    assert not world.roles.authorizer.has_ceilings(BLUE, "elsewhere")
    assert not world.roles.authorizer.has_ceilings(authenticated("blue", ("system:masters",)), "")


def test_nobody_gives_away_more_than_his_ceiling(world: World) -> None:
    world.role(to_events(filter={"cel": CEILING}), rule("roles rolebindings", "get create update patch", RBAC))
    world.bind()

    def role(*rules: dict[str, Any]) -> Any:
        document = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": list(rules)}
        return world.admission.create(Kind.ROLE, document, by(BLUE), namespace="shop")

    for wider in ({}, {"filter": {"cel": f"{CEILING} || data.n == 1"}}, {"filter": {"cel": "true"}}):
        with pytest.raises(ForbiddenError, match="not currently held"):
            role(to_events(**wider))
    role(to_events(filter={"cel": CEILING}))


# --- what it is joined to -------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["shop", "team"])
def test_a_filter_of_a_trigger_is_joined_to_the_ceiling_of_its_writer(world: World, namespace: str) -> None:
    world.role(to_events(filter={"cel": CEILING}))
    world.bind()
    made = world.create(namespace=namespace, filter={"cel": 'ce.type == "order" || true'})
    path = f"{namespace}/t"
    assert [takes(world.filter(path).cel, one) for one in (event(tenant="blue"), event(tenant="red"))] == [True, False]
    assert any("cut off by the ceiling" in one and CEILING in one for one in made.warnings)
    status = world.read(path).status
    assert status.ceiling == CEILING
    (said,) = [one for one in status.conditions if one.type == "WithinCeiling"]
    assert (said.status, said.reason, said.severity) == ("False", "Cut", "Info")
    assert world.filter(path).rows[0].signature.key, "it is looked up as any other filter"


@pytest.mark.parametrize(
    ("cel", "reason"),
    [
        (f'{CEILING} && ce.type == "order"', "Inside"),
        ('data.tenant == "red"', "Cut"),
        ('ce.type == "order"', "Cut"),
        ("data.items.exists(i, i.n * 2 > data.m)", "Unknown"),
    ],
)
def test_the_algebra_says_how_a_filter_stands_to_it(world: World, cel: str, reason: str) -> None:
    world.role(to_events(filter={"cel": CEILING}))
    world.bind()
    world.create(filter={"cel": cel})
    (said,) = [one for one in world.read().status.conditions if one.type == "WithinCeiling"]
    assert said.reason == reason


def test_every_way_of_writing_is_joined(world: World) -> None:
    world.role(to_events(filter={"cel": CEILING}))
    world.bind()
    key = ObjectKey(Kind.TRIGGER, "shop", "t")
    world.create(filter={"cel": 'ce.type == "a"'}, user=EVE)
    assert world.filter().ceiling == "", "eve has no right below a ceiling"

    def patch(user: Any, part: str, news: dict[str, Any]) -> None:
        world.admission.patch(key, lambda old: old | {part: old[part] | news}, by(user))

    def apply() -> None:
        document = trigger("t", filter={"cel": "1 < 2"})
        document["spec"]["broker"] = "orders"
        world.admission.server_side_apply(key, document, WriteOptions(Manager("m", "Apply", True, BLUE)))

    forged = json.dumps({"name": "root", "groups": ["system:masters"]})
    ways: list[Callable[[], object]] = [
        lambda: patch(BLUE, "spec", {"filter": {"cel": "true"}}),
        apply,
        lambda: patch(EVE, "metadata", {"labels": {"a": "b"}}),
        lambda: world.itself.merge(key, {"metadata": {"labels": {"c": "d"}}}),
        lambda: patch(BLUE, "metadata", {"annotations": {SUBSCRIBER_ANNOTATION: forged}}),
        lambda: patch(EVE, "metadata", {"annotations": {SUBSCRIBER_ANNOTATION: forged}}),
    ]
    for number, way in enumerate(ways):
        way()
        world.reconciler.step()
        assert not takes(world.filter().cel, event(tenant="red")), number
        assert takes(world.filter().cel, event(tenant="blue")), number


def test_a_subscription_is_joined_too(world: World) -> None:
    world.role(to_events(filter={"cel": CEILING}))
    world.bind()
    document = {
        "apiVersion": "headgate.dev/v1",
        "kind": "Subscription",
        "metadata": {"name": "s"},
        "spec": {"broker": "orders", "filterFrom": "beginning", "consumerMetadata": {"anytag1": "x"}},
    }
    made = world.admission.create(Kind.SUBSCRIPTION, document, by(BLUE), namespace="shop").obj
    assert isinstance(made, Subscription)
    assert made.status.ceiling == CEILING
    (target,) = world.store.snapshot().targets.values()
    assert target.filter.cel.startswith(CEILING)


def test_a_ceiling_that_leaves_no_room_for_a_filter_refuses_it(world: World) -> None:
    many = " || ".join(f"data.n == {number}" for number in range(200))
    world.role(to_events(filter={"cel": many}))
    world.bind()
    with pytest.raises(InvalidInputError, match="ceiling"):
        world.create(filter={"cel": many.replace("data.n", "data.m")})


def test_a_ceiling_that_is_an_error_lets_nothing_through(world: World) -> None:
    world.role(to_events(filter={"cel": "data.n > 1"}))
    world.bind()
    world.create(filter={"cel": 'ce.type == "order" || data.n == "x"'})
    assert not takes(world.filter().cel, event())
    assert not takes(world.filter().cel, event(n="x"))
    assert takes(world.filter().cel, event(n=2))


# --- when rights change ---------------------------------------------------------------------------


def test_targets_are_judged_anew_when_roles_and_bindings_change(world: World) -> None:
    world.role(to_events())
    binding = world.bind()
    world.create()
    world.create(namespace="team")
    paths = ("shop/t", "team/t")
    assert {world.filter(path).cel for path in paths} == {"true"}
    generation = world.store.snapshot().generation
    world.role(to_events(filter={"cel": CEILING}))
    world.reconciler.step()
    assert {world.filter(path).cel for path in paths} == {CEILING}
    assert world.read().status.ceiling == CEILING
    assert world.store.snapshot().generation > generation, "the matcher must take the joined filters"
    world.role(to_events(filter={"cel": "data.n > 1"}))
    world.reconciler.step()
    assert {world.filter(path).ceiling for path in paths} == {"data.n > 1"}
    world.bind("headgate:admin")
    world.reconciler.step()
    assert {world.filter(path).cel for path in paths} == {"true"}
    assert world.read().status.ceiling == ""
    world.store.delete(ObjectKey(Kind.ROLE_BINDING, "shop", "headgate-admin-blue"))
    world.reconciler.step()
    assert {world.filter(path).ceiling for path in paths} == {"data.n > 1"}
    world.store.delete(binding)
    world.reconciler.step()
    assert world.store.snapshot().trigger("team/t") is None, "the broker of another namespace needs a right"
    assert world.filter("shop/t").cel == "data.n > 1", "whose last right to events goes gets no more for it"


def test_a_right_that_comes_back_has_the_ceiling_of_then(world: World) -> None:
    world.role(to_events(filter={"cel": "data.n > 1"}))
    binding = world.bind()
    world.create(namespace="team")
    world.store.delete(binding)
    world.reconciler.step()
    assert world.store.snapshot().trigger("team/t") is None
    world.role(to_events(filter={"cel": CEILING}))
    world.bind()
    world.reconciler.step()
    assert world.filter("team/t").cel == CEILING


def test_a_restart_between_the_judgement_and_the_joining_joins(world: World) -> None:
    """The first of the two writes is enough for the last check before delivery; the second is made again."""
    world.role(to_events())
    world.bind()
    world.create()
    (taker,) = world.store.targets.takers()
    world.store.targets.judge([(taker, taker._replace(ceiling=CEILING))])
    assert (world.filter().cel, world.filter().ceiling) == ("true", CEILING)
    assert world.store.plans.left() == 1
    world.store.plans.recompile()
    assert world.filter().cel == CEILING


def test_a_pass_that_fails_between_the_two_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.role(to_events())
    world.bind()
    world.create()
    world.reconciler.step()
    world.role(to_events(filter={"cel": CEILING}))

    def fails(after: int = 0) -> int | None:
        raise StoreUnavailableError("busy")

    with monkeypatch.context() as patched:
        patched.setattr(world.store.plans, "recompile", fails)
        with pytest.raises(StoreUnavailableError):
            world.reconciler.step()
    assert (world.filter().cel, world.filter().ceiling) == ("true", CEILING)
    world.reconciler.step()
    assert world.filter().cel == CEILING


def test_whoever_has_a_ceiling_does_not_send_a_brokers_dead_letters_elsewhere(world: World) -> None:
    world.role(to_events(filter={"cel": CEILING}), rule("brokers", "update patch"))
    world.bind()
    key = ObjectKey(Kind.BROKER, "shop", "orders")
    sink = {"delivery": {"deadLetterSink": {"uri": "http://127.0.0.1:9/"}}}
    with pytest.raises(ForbiddenError, match="has a ceiling"):
        world.admission.patch(key, lambda old: old | {"spec": sink}, by(BLUE))
    world.admission.patch(key, lambda old: old | {"spec": sink}, by(EVE))


def test_a_stored_filter_that_no_longer_compiles_gives_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.role(to_events(filter={"cel": CEILING}))
    world.bind()

    def fails(rule: object) -> str:
        raise InvalidInputError("the dialect is gone")

    monkeypatch.setattr("headgate.objects.kinds.rbac_rules.ceiling_of", fails)
    copy = RbacCopy(world.store)
    copy.refresh()
    assert copy.authorizer.ceiling(BLUE, READ.on(BROKER)) == "false"


def test_an_update_that_drops_filters_unseen_is_refused(world: World) -> None:
    """As by a program that knows roles by Kubernetes' types: it writes back what it has read, without the filters."""
    world.role(to_events(filter={"cel": CEILING}))
    key = ObjectKey(Kind.CLUSTER_ROLE, "", "blue")
    read = _plain(world.store.get(key))
    read["metadata"] = {name: read["metadata"][name] for name in ("name", "annotations")}
    read |= {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole"}
    for one in read["rules"]:
        del one["filter"]
    with pytest.raises(InvalidObjectError, match="would erase"):
        world.itself.replace(key, read)
    del read["metadata"]["annotations"]
    world.itself.replace(key, read)
    assert "headgate.dev/filters" not in world.store.get(key).metadata.annotations
