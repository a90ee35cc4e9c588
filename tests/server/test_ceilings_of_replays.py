"""Replays below a ceiling: they count and send what is below it, and are shown to who may know all that they count."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.auth.user import authenticated
from headgate_api.objects.kinds import Kind
from tests.objects.support import broker
from tests.server.ceilings import (
    BLUE,
    EVENTING,
    EVERYTHING_ELSE,
    ROOT,
    Answer,
    events_rule,
)
from tests.server.kept import KeptWorld
from tests.server.test_ceilings import trigger
from tests.server.test_ceilings_of_what_is_kept import OBJECTS, REPLAYS, Two, kept, seen
from tests.support import eventually

__all__ = ["kept"]
URL = "http://127.0.0.1:9/"
GREEN = authenticated("green")
COUNTING = {"eventsPassed", "eventsTotal", "position", "start", "end", "filterErrors"}
"""What other events count in."""


def ended(one: KeptWorld, made: Answer, user: Any = BLUE) -> dict[str, Any]:
    assert made.status == 201, made.body
    path = f"{REPLAYS}/{made.json['id']}"
    return eventually(
        lambda: (found := one.world.ask("GET", path, user=user).json)["state"] != "running" and found  # type: ignore[return-value]
    )


ASKED: list[tuple[dict[str, Any], int]] = [
    ({"broker": "orders", "url": URL}, 20),
    ({"broker": "orders", "url": URL, "filter": "true) || (true"}, -1),
    ({"broker": "orders", "url": URL, "filter": "true || true"}, 20),
    ({"broker": "orders", "url": URL, "filter": 'data.secret == "crimson"'}, 0),
    ({"broker": "orders", "url": URL, "filter": "data.n < 0 || data.n >= 30"}, 10),
    ({"broker": "orders", "url": URL, "filter": "data.n / (data.n - data.n) > 0"}, 0),
    ({"broker": "orders", "url": URL, "filter": {"attributes": {"source": "/crimson"}}}, 0),
    ({"broker": "orders", "url": URL, "filter": {"cesql": "source LIKE '%crimson'"}}, 0),
    ({"broker": "orders", "url": URL, "from": "0:1", "to": "0:3"}, 0),
    ({"broker": "orders", "url": URL, "from": "2026-01-01T00:00:04Z"}, 13),
    ({"trigger": "mine"}, 20),
    ({"trigger": "every"}, 20),
    ({"trigger": "every", "filter": "data.n > 40"}, 6),
]


def test_a_replay_counts_what_is_below_the_ceiling(kept: Two) -> None:
    for asked, matched in ASKED:
        made = [one.world.ask("POST", REPLAYS, asked | {"dryRun": True}) for one in kept]
        assert seen(made[0]) == seen(made[1])
        if matched < 0:
            assert made[0].status == 422
            continue
        found = [ended(one, each) for one, each in zip(kept, made, strict=True)]
        for one in found:
            assert COUNTING.isdisjoint(one), asked
            assert (one["state"], one["matched"], one["problem"]) == ("done", matched, ""), asked
        assert [one | {"created": ""} for one in found[:1]] == [one | {"created": ""} for one in found[1:]]
    lists = [one.world.ask("GET", REPLAYS) for one in kept]
    assert seen(lists[0]) == seen(lists[1])
    listed = lists[0].json["items"]
    assert len(listed) == len(ASKED) - 1
    assert all(COUNTING.isdisjoint(one) for one in listed)
    of_root = kept[0].world.ask("GET", f"{REPLAYS}/{listed[0]['id']}", user=ROOT).json
    assert set(of_root) >= COUNTING, "whoever has no ceiling is told it"
    assert 'data.tenant == "blue"' in of_root["filter"]


def narrower(one: KeptWorld) -> None:
    """Green has a part of what blue has, but for one event of another one."""
    one.world.role([events_rule(filter={"cel": 'data.tenant == "blue" && data.n > 30'}), *EVERYTHING_ELSE], "narrow")
    one.world.bind("narrow", "shop", GREEN)


def test_others_replays_are_not_there(kept: Two) -> None:
    """Those of a narrower ceiling are shown: who has the wider one may know all that they count."""
    one = kept[0]
    narrower(one)
    ids = {}
    for user in (ROOT, BLUE, GREEN):
        made = one.world.ask("POST", REPLAYS, {"broker": "orders", "url": URL, "dryRun": True}, user)
        ids[user.name] = ended(one, made, user)["id"]
    shown = {
        user.name: {item["id"] for item in one.world.ask("GET", REPLAYS, user=user).json["items"]}
        for user in (ROOT, BLUE, GREEN)
    }
    assert shown == {
        "root": set(ids.values()),
        "blue": {ids["blue"], ids["green"]},
        "green": {ids["green"]},
    }
    for user, hidden in ((BLUE, "root"), (GREEN, "root"), (GREEN, "blue")):
        for method, path in (("GET", f"{REPLAYS}/{{}}"), ("POST", f"{REPLAYS}/{{}}/cancel")):
            there, absent = (one.world.ask(method, path.format(id_), user=user) for id_ in (ids[hidden], 9999))
            assert (there.status, absent.status) == (404, 404)
            assert there.body.replace(f"replay {ids[hidden]} ".encode(), b"replay 9999 ") == absent.body
    assert one.world.ask("POST", f"{REPLAYS}/{ids['green']}/cancel").status == 200
    one.world.role([events_rule(filter={"cel": 'data.tenant == "blue" && data.n > 50'}), *EVERYTHING_ELSE])
    one.world.roles.refresh()
    assert one.world.ask("GET", REPLAYS).json["items"] == [], "the ceiling of now is narrower than all of them"


def test_who_gets_no_event_of_a_broker_replays_none(kept: Two) -> None:
    """And does not learn by that whether there is such a broker."""
    for one in kept:
        one.world.itself.create(Kind.BROKER, broker("away"), namespace="far")
        ref = {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "namespace": "far", "name": "away"}
        assert one.world.ask("POST", f"{OBJECTS}/triggers", trigger("far", brokerRef=ref), ROOT).status == 201
        one.world.reconciler.step()
    refused = alike_but_for(kept, {"trigger": "far"})
    assert (refused.status, b"far" in refused.body) == (403, True)
    assert kept[0].world.ask("POST", REPLAYS, {"trigger": "far", "dryRun": True}, ROOT).status == 201
    for one in kept:  # he has a ceiling, of another namespace's brokers
        one.world.role(EVERYTHING_ELSE)
        one.world.role([events_rule(filter={"cel": "true"})], "else")
        one.world.bind("else", "team")
    there, absent = (alike_but_for(kept, {"broker": name, "url": URL}) for name in ("orders", "nosuch"))
    assert (there.status, absent.status) == (403, 403)
    assert there.body.replace(b"orders", b"nosuch") == absent.body
    assert kept[0].world.ask("POST", REPLAYS, {"broker": "nosuch", "url": URL}, ROOT).status == 404


def alike_but_for(kept: Two, body: dict[str, Any]) -> Answer:
    answers = [one.world.ask("POST", REPLAYS, body) for one in kept]
    assert seen(answers[0]) == seen(answers[1])
    return answers[0]


@pytest.mark.parametrize("user", [BLUE, ROOT], ids=["blue", "root"])
def test_a_replay_remembers_whose_right_it_was(kept: Two, user: Any) -> None:
    made = kept[0].world.ask("POST", REPLAYS, {"broker": "orders", "url": URL, "dryRun": True}, user).json
    found = kept[0].world.loop.run_until_complete(kept[0].replays.get("shop", made["id"]))
    assert found is not None
    ceiling = 'data.tenant == "blue"' if user is BLUE else ""
    assert (found.spec.owner, found.spec.groups, found.spec.ceiling) == (user.name, user.groups, ceiling)
