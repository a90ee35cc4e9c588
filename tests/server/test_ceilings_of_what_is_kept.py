"""Dead letters, events that wait and replays below a ceiling: those of the user's events, as if there were no others.

Two servers answer alike that have the same of his, and of the hidden events one has many and the other one few.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from headgate.auth.user import User
from headgate.deadletters import own as own_letters
from headgate.deadletters.own import opaque_ids
from headgate.deadletters.store import DeadLetterReader, DeadLetterStore
from headgate_api import limits
from headgate_api.event import rfc3339
from headgate_api.objects.kinds import Kind
from tests.objects.support import broker
from tests.server.ceilings import (
    BLUE,
    EVENTING,
    EVERYTHING_ELSE,
    OWN,
    RBAC,
    ROOT,
    START_US,
    Answer,
    World,
    events_rule,
    rule,
    world,
)
from tests.server.kept import KeptWorld, keeping
from tests.server.test_ceilings import target_of, trigger

OBJECTS = f"/apis/{EVENTING}/v1/namespaces/shop"
OURS = f"/apis/{OWN}/v1/namespaces/shop"
EVERYWHERE = f"/apis/{OWN}/v1"
LETTERS, PENDING, REPLAYS = f"{OURS}/deadletters", f"{OURS}/pending", f"{OURS}/replays"
VARIANTS = ("crimson", "scarlet")
_NUMBERS = re.compile(rb'"(id|deadLetter|next|ceiling)":("[0-9.-]+"|[0-9]+)')
_GIVEN = re.compile(rb'"(created|time)":"[^"]*"|[0-9]{10,}')
"""What differs by itself: times of now, and the words for an id."""
Two = tuple[KeptWorld, KeptWorld]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Two]:
    with two(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Two that no test changes."""
    with two(tmp_path_factory.mktemp("still")) as found:
        yield found


@contextmanager
def two(folder: Path) -> Iterator[Two]:
    with ExitStack() as stack:
        found = []
        for variant in VARIANTS:
            one = stack.enter_context(world(folder / variant, variant))
            found.append(stack.enter_context(keeping(one, variant, prepared(one))))
        yield found[0], found[1]


def prepared(one: World) -> dict[str, int]:
    """Triggers of blue and of another one, and a broker of which blue has all."""
    one.itself.create(Kind.BROKER, broker("all"), namespace="open")
    one.role([events_rule()], "open")
    one.bind("open", "open")
    one.role([rule(OWN, "deadletters pending", ["list"])], "lister")
    everywhere = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "blue-lists"},
        "subjects": [{"kind": "User", "name": "blue"}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "lister"},
    }
    one.itself.apply(everywhere)
    one.roles.refresh()
    for name, user in (("mine", BLUE), ("every", ROOT)):
        assert one.ask("POST", f"{OBJECTS}/triggers", trigger(name, broker="orders"), user).status == 201
    one.reconciler.step()
    return {"mine": target_of(one, "mine"), "every": target_of(one, "every"), "gone": 990}


def seen(answer: Answer) -> tuple[int, bytes]:
    return answer.status, _GIVEN.sub(b"#", _NUMBERS.sub(rb'"\1":0', answer.body))


def alike(kept: Two, method: str, path: str, body: object = None) -> Answer:
    """The answers of the two are the same; the first one."""
    answers = [one.world.ask(method, path, body) for one in kept]
    assert seen(answers[0]) == seen(answers[1]), path
    for secret in (b"secret", b"crimson-1 ", b"scarlet-", b"far/away"):
        assert secret not in answers[0].body, path
    return answers[0]


def walk(one: KeptWorld, path: str, **query: object) -> list[list[dict[str, Any]]]:
    """The items of all pages of a list."""
    pages = []
    while True:
        answer = one.world.ask("GET", f"{path}?{urlencode(query)}")
        assert answer.status == 200, answer.body
        pages.append(answer.json["items"])
        if "next" not in answer.json:
            return pages
        query |= {"after": answer.json["next"], "ceiling": answer.json["ceiling"]}


def told(pages: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [[item | {"id": 0} for item in page] for page in pages]


SELECTIONS: list[dict[str, object]] = [
    {},
    {"newest": "true"},
    {"trigger": "every"},
    {"trigger": "mine", "newest": "true"},
    {"trigger": "gone"},
    {"trigger": "nosuch"},
    {"event": "crimson-1"},
    {"event": "scarlet-1"},
    {"event": "blue-3"},
    {"source": "/crimson"},
    {"source": "/scarlet", "newest": "true"},
    {"filter": "true"},
    {"filter": 'data.secret == "crimson"'},
    {"filter": 'data.tenant == "red"'},
    {"filter": "data.n / (data.n - data.n) > 0"},
    {"filter": 'ce.source == "/crimson" || ce.source == "/scarlet"'},
    {"filter": 'ce.type == "made"'},
    {"since": rfc3339.text(START_US + 7_000_000)},
    {"until": rfc3339.text(START_US + 12_000_000)},
    {"ids": "1"},
]
OF_LETTERS: list[dict[str, object]] = [
    {"reason": "503"},
    {"reason": "404"},
    {"state": "kept"},
    {"state": "sending"},
    {"reason": "503", "event": "crimson-4"},
]


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_lists_have_what_came_of_ones_own_events(still: Two, limit: int) -> None:
    """By every selection, in both orders, in pages of every size, which tell by no place how many others there are."""
    tried = 0
    for path in (LETTERS, PENDING, f"{EVERYWHERE}/deadletters", f"{EVERYWHERE}/pending"):
        for selection in SELECTIONS + (OF_LETTERS if "deadletters" in path else []):
            if "ids" in selection and path != LETTERS:
                continue
            alike(still, "GET", f"{path}?{urlencode(selection | {'limit': limit})}")
            if "ids" not in selection:
                one, other = (told(walk(each, path, **selection, limit=limit)) for each in still)
                assert one == other, (path, selection)
            tried += 1
    assert tried >= 80


def test_who_has_no_ceiling_sees_all(still: Two) -> None:
    """Else the other tests would prove nothing."""
    counts = [one.world.ask("GET", f"{LETTERS}/counts", user=ROOT).json["total"] for one in still]
    assert counts[0] > 200 > counts[1] > 80
    listed = still[0].world.ask("GET", f"{LETTERS}?limit=1000", user=ROOT).json["items"]
    assert [one["id"] for one in listed] == sorted(one["id"] for one in listed)
    assert {one["eventSource"] for one in listed} == {"/blue", "/crimson", "/open"}
    waiting = [one.world.ask("GET", f"{PENDING}/counts", user=ROOT).json["total"] for one in still]
    assert waiting == [120, 54]


def test_it_is_judged_by_the_event_as_it_was_stored(still: Two) -> None:
    """A transform makes another tenant's look like blue's, and blue's like another's."""
    items = [item for page in walk(still[0], LETTERS) for item in page]
    assert [one["eventSource"] for one in items] == ["/blue"] * 60 + ["/open"] * 3
    assert {one["reason"] for one in items[-3:]} == {"timeout"}, "those of the broker of which he has all"
    assert {one["trigger"] for one in items} == {"mine", "every", "gone"}
    waiting = [item for page in walk(still[0], PENDING) for item in page]
    assert {one["eventSource"] for one in waiting} == {"/blue"}
    assert len(waiting) == 40


def test_counts_are_those_of_ones_own(still: Two) -> None:
    for path, total in ((LETTERS, 63), (PENDING, 40), (f"{EVERYWHERE}/deadletters", 63)):
        counts = alike(still, "GET", f"{path}/counts").json
        assert (counts["total"], counts["more"], counts["partial"]) == (total, False, False)
        assert alike(still, "GET", f"{path}/counts?limit=1").json["more"] is True
    counted = {
        (one["trigger"], one["reason"]): one["count"]
        for one in still[0].world.ask("GET", f"{LETTERS}/counts").json["items"]
    }
    assert counted == {("mine", "400"): 20, ("every", "503"): 20, ("gone", "404"): 20, ("gone", "timeout"): 3}
    waiting = still[0].world.ask("GET", f"{PENDING}/counts").json["items"]
    assert [(one["trigger"], one["count"], one["oldest"], one["newest"]) for one in waiting] == [
        ("every", 20, "2026-01-01T00:59:03.000000Z", "2026-01-01T01:00:00.000000Z"),
        ("mine", 20, "2026-01-01T00:59:03.000000Z", "2026-01-01T01:00:00.000000Z"),
    ]


def raw_ids(one: KeptWorld, path: str) -> dict[tuple[str, int, str], int]:
    """The ids that there are: by trigger, offset and reason."""
    where = "state != 'pending'" if path == LETTERS else "state = 'pending'"
    with DeadLetterReader.open(one.path) as stored:
        rows = [stored.get(row.id) for row in stored.summaries(where, (), after=0, limit=10_000)]
    return {(row.trigger, row.offset, row.reason + row.broker): row.id for row in rows if row is not None}


@pytest.mark.parametrize("path", [LETTERS, PENDING])
def test_ids_count_nothing_and_those_of_others_are_not_there(still: Two, path: str) -> None:
    known: list[list[int]] = []
    for one in still:
        ids = opaque_ids(one.world.store.server_secret)
        raw = raw_ids(one, path)
        own = [item["id"] for page in walk(one, path) for item in page]
        assert set(own).isdisjoint(raw.values())
        assert set(map(ids.meant, own)) < set(raw.values())
        others = set(raw.values()) - set(map(ids.meant, own))
        assert len(others) >= 14
        unknown = one.world.ask("GET", f"{path}/4503599627370495")
        assert unknown.status == 404
        for asked in (
            *(ids.shown(other) for other in sorted(others)[:9]),
            *sorted(others)[:9],
            ids.meant(own[0]),
            10**17,
        ):
            answer = one.world.ask("GET", f"{path}/{asked}")
            said = answer.body.replace(f" {asked} ".encode(), b" 4503599627370495 ")
            assert (answer.status, said) == (404, unknown.body), asked
        assert one.world.ask("GET", f"{path}/{own[0]}").status == 200
        every = [*own, *others, *map(ids.shown, others)]
        answers = [
            one.world.ask("POST", f"{path}/known", {"ids": every[at : at + 900]}).json
            for at in range(0, len(every), 900)
        ]
        assert sorted(id_ for answer in answers for id_ in answer["known"]) == sorted(own)
        known.append(own)
    assert len(known[0]) == len(known[1])
    for ids_of_one in zip(*known, strict=True):
        first, other = (each.world.ask("GET", f"{path}/{id_}") for each, id_ in zip(still, ids_of_one, strict=True))
        assert seen(first) == seen(other)
        assert (first.json["event"]["id"], b"secret" in first.body) == (first.json["eventId"], False)


def test_the_answer_to_several_events_is_not_told(still: Two) -> None:
    for name, answer in (("mine", "no"), ("every", None)):
        (items,) = walk(still[0], LETTERS, trigger=name, event="blue-3")
        shown = still[0].world.ask("GET", f"{LETTERS}/{items[0]['id']}").json
        assert shown.get("answer") == answer
    raw = raw_ids(still[0], LETTERS)["shop/every", 3, "503shop/orders"]
    assert still[0].world.ask("GET", f"{LETTERS}/{raw}", user=ROOT).json["answer"] == "crimson-1 is wrong"


# --- what became of an event ----------------------------------------------------------------------


def told_of(one: KeptWorld, path: str, user: User = BLUE) -> list[dict[str, Any]]:
    """What is told of the dead letters of an event."""
    answer = one.world.ask("GET", f"{OBJECTS}/brokers/orders/{path}?id=blue-3", user=user).json
    if path == "trace":
        return [match["deadLetter"] for match in answer["trace"]["matches"]]
    return [line for line in answer["timeline"] if line["what"] == "dead-letter"]


def test_traces_name_dead_letters_as_lists_do(kept: Two) -> None:
    """Their numbers in the store count others', as does where a match stands in the outbox."""
    for one in kept:
        one.match(3)
    for path in ("trace", "timeline", "why"):
        answer = alike(kept, "GET", f"{OBJECTS}/brokers/orders/{path}?id=blue-3")
        assert b'"position"' not in answer.body
    one = kept[0]
    (items,) = walk(one, LETTERS, event="blue-3")
    ids = {item["id"] for item in items if item["trigger"] != "gone"}
    assert {line["id"] for line in told_of(one, "trace")} == ids
    lines = told_of(one, "timeline")
    assert {line["deadLetter"] for line in lines} == ids
    assert all(f"dead letter {line['deadLetter']} " in line["says"] for line in lines)
    raw = {line["id"] for line in told_of(one, "trace", ROOT)}
    assert (len(raw), raw.isdisjoint(ids), max(raw) < 1_000) == (2, True, True)
    for name, answer in (("mine", "no"), ("every", "crimson-1 is wrong")):
        path = f"{OBJECTS}/triggers/{name}/why?id=blue-3"
        assert one.world.ask("GET", path, user=ROOT).json["attempts"]["answer"] == answer
    assert one.world.ask("GET", f"{OBJECTS}/triggers/mine/why?id=blue-3").json["attempts"]["answer"] == "no"
    listed = one.world.ask("GET", f"{OBJECTS}/brokers/orders/why?id=blue-3").json["triggers"]
    answers = {each["trigger"]: each["attempts"].get("answer") for each in listed}
    assert answers == {"mine": "no", "every": None}, "it was that to other events, too"


# --- changes --------------------------------------------------------------------------------------


def states(one: KeptWorld) -> dict[tuple[str, int, str], str]:
    """Of everything that is there."""
    with DeadLetterReader.open(one.path) as stored:
        rows = [stored.get(row.id) for row in stored.summaries("TRUE", (), after=0, limit=10_000)]
    return {(row.trigger, row.offset, row.reason + row.broker): row.state for row in rows if row is not None}


def changed(kept: Two, path: str, body: dict[str, object]) -> list[int]:
    """The counts of all pages, of both alike."""
    counts: list[list[int]] = []
    for one in kept:
        asked, found = dict(body), []
        while True:
            answer = one.world.ask("POST", path, asked)
            assert answer.status == 200, answer.body
            found.append(answer.json["count"])
            if "next" not in answer.json:
                break
            asked |= {"after": answer.json["next"], "ceiling": answer.json["ceiling"]}
        counts.append(found)
    assert counts[0] == counts[1]
    return counts[0]


@pytest.mark.parametrize(
    ("what", "body", "count"),
    [
        (f"{LETTERS}/discard", {}, 63),
        (f"{LETTERS}/discard", {"limit": 2}, 63),
        (f"{LETTERS}/discard", {"reason": "503"}, 20),
        (f"{LETTERS}/discard", {"trigger": "mine", "state": "kept"}, 20),
        (f"{LETTERS}/discard", {"filter": 'data.tenant == "blue" || has(data.secret)'}, 40),
        (f"{LETTERS}/discard", {"event": "crimson-1"}, 0),
        (f"{LETTERS}/discard", {"event": "open-1"}, 1),
        (f"{LETTERS}/discard", {"source": "/scarlet"}, 0),
        (f"{LETTERS}/redrive", {}, 40),  # the others' trigger is gone
        (f"{LETTERS}/redrive", {"trigger": "every"}, 20),
        (f"{LETTERS}/redrive/mine", {"trigger": "every"}, 20),
        (f"{LETTERS}/redrive/mine", {"trigger": "gone"}, 23),
        (f"{PENDING}/cancel", {}, 40),
        (f"{PENDING}/cancel", {"limit": 1}, 40),
        (f"{PENDING}/cancel", {"event": "crimson-1"}, 0),
        (f"{PENDING}/cancel", {"trigger": "every", "source": "/blue"}, 20),
    ],
)
def test_changes_touch_what_came_of_ones_own_events(kept: Two, what: str, body: dict[str, object], count: int) -> None:
    own = [
        {(item["trigger"], item["eventId"]) for path in (LETTERS, PENDING) for page in walk(one, path) for item in page}
        for one in kept
    ]
    before = [states(one) for one in kept]
    assert sum(changed(kept, what, body)) == count
    for one, was, mine in zip(kept, before, own, strict=True):
        now = states(one)
        moved = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
        assert bool(moved) == (count > 0)
        for trigger_, offset, _ in moved:
            is_open = offset >= 60
            assert is_open or offset % 3 == 0, (trigger_, offset)
            assert is_open or any(id_ == f"blue-{offset}" for _, id_ in mine)


def test_ids_of_others_change_nothing_and_neither_do_ones_own_beside_them(kept: Two) -> None:
    for path, verbs in ((LETTERS, ("redrive", "discard", "redrive/mine")), (PENDING, ("cancel",))):
        for one in kept:
            ids, raw = opaque_ids(one.world.store.server_secret), raw_ids(one, path)
            own = [item["id"] for page in walk(one, path) for item in page]
            others = sorted(set(raw.values()) - set(map(ids.meant, own)))
            before = states(one)
            for verb in verbs:
                for wrong in (others[0], ids.shown(others[0]), ids.meant(own[0])):
                    answer = one.world.ask("POST", f"{path}/{verb}", {"ids": [own[0], wrong]})
                    assert (answer.status, b"nothing was done" in answer.body) == (404, True), answer.body
            assert states(one) == before
            assert one.world.ask("POST", f"{path}/{verbs[0]}", {"ids": own[:2]}).json["count"] == 2


def test_nothing_is_sent_to_a_trigger_that_gets_more(kept: Two) -> None:
    refused = alike(kept, "POST", f"{LETTERS}/redrive/every", {})
    assert (refused.status, b"its ceiling is wider" in refused.body) == (403, True), refused.body
    assert alike(kept, "POST", f"{LETTERS}/redrive/nosuch", {}).status == 404
    assert kept[0].world.ask("POST", f"{LETTERS}/redrive/every", {"trigger": "mine"}, ROOT).json["count"] > 20
    one = kept[1].world  # a trigger of the broker of which he has all is his, and gets nothing hidden by that
    ref = {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "namespace": "open", "name": "all"}
    assert one.ask("POST", f"{OBJECTS}/triggers", trigger("wide", brokerRef=ref)).status == 201
    one.reconciler.step()
    assert one.ask("POST", f"{LETTERS}/redrive/wide", {"trigger": "every"}).json["count"] == 20
    moved = [offset for (name, offset, _), state in states(kept[1]).items() if name == "shop/wide"]
    assert sorted(moved) == list(range(0, 60, 3))


def test_what_dies_while_one_redrives_is_not_redriven_with_it(kept: Two) -> None:
    """The first page says when it began, and not which is the newest."""
    one = kept[0]
    first = one.world.ask("POST", f"{LETTERS}/discard", {"limit": 5, "trigger": "mine"}).json
    with closing(DeadLetterStore(one.path)) as store:
        store.apply([late(one)], [], [])
    rest = one.world.ask(
        "POST", f"{LETTERS}/discard", {"trigger": "mine", "after": first["next"], "ceiling": first["ceiling"]}
    )
    assert (first["count"], rest.json["count"]) == (5, 15)
    (left,) = walk(one, LETTERS, trigger="mine")
    assert [item["eventId"] for item in left] == ["blue-3"]


def late(one: KeptWorld) -> Any:
    """A dead letter of blue's that dies a day from now."""
    return one._letter("mine", 3, one.world.events[3], position=-7, died_us=rfc3339.micros("2126-01-01T00:00:00Z"))


# --- the right of now -----------------------------------------------------------------------------


def test_the_ceiling_of_now_counts(kept: Two) -> None:
    """Other processes have other copies of the roles; who asks again has the new one."""
    cases: list[tuple[dict[str, Any], Callable[[int], bool]]] = [
        ({"cel": 'data.tenant == "blue" && data.n >= 30'}, lambda offset: offset % 3 == 0 and offset >= 30),
        (
            {"cel": "publish_time < timestamp('2026-01-01T00:00:10Z') && ce.source == '/blue'"},
            lambda offset: offset in (0, 3, 6, 9),
        ),
        ({"cel": 'ce.type == "made"'}, lambda _: False),
        ({"cel": "data.nosuch == 1"}, lambda _: False),
        ({"cel": "false"}, lambda _: False),
    ]
    for filter_, is_own in cases:
        for one in kept:
            one.world.role([events_rule(filter=filter_), *EVERYTHING_ELSE])
            one.world.roles.refresh()
        wanted = {f"blue-{offset}" for offset in range(60) if is_own(offset)}
        alike(kept, "GET", f"{LETTERS}/counts")
        for path in (LETTERS, PENDING):
            items = [item for page in walk(kept[0], path) for item in page if item.get("reason") != "timeout"]
            assert {item["eventId"] for item in items} == wanted, filter_
        assert alike(kept, "GET", LETTERS).status == 200
    for one in kept:
        one.world.role(EVERYTHING_ELSE)
        one.world.role([events_rule(filter={"cel": "true"})], "else")
        one.world.bind("else", "team")  # a right elsewhere is none here
    assert [item["reason"] for page in walk(kept[0], LETTERS) for item in page] == ["timeout"] * 3
    assert walk(kept[0], PENDING) == [[]]
    alike(kept, "GET", LETTERS)


# --- bounds ---------------------------------------------------------------------------------------


def test_a_request_passes_over_a_bounded_number_of_others_and_says_where_to_go_on(
    kept: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    has = own_letters.OwnLetters.has

    def counted(self: Any, *given: Any) -> bool:
        looked_at.append(1)
        return has(self, *given)

    monkeypatch.setattr(own_letters.OwnLetters, "has", counted)
    whole = [item["eventId"] for page in walk(kept[0], LETTERS) for item in page]
    monkeypatch.setattr(limits, "DEADLETTERS_PASSED_MAX", 10)
    for more in ({}, {"newest": "true"}):
        found: list[str] = []
        for page in walk(kept[0], LETTERS, limit=4, **more):
            found += [item["eventId"] for item in page]
            assert len(page) <= 4
        assert sorted(found) == sorted(whole)
    looked_at.clear()
    page = kept[0].world.ask("GET", f"{LETTERS}?limit=1000").json
    assert len(looked_at) < 10 + len(page["items"]) + 1
    assert "next" in page
    counts = kept[0].world.ask("GET", f"{LETTERS}/counts").json
    assert (counts["partial"], counts["total"] < 63) == (True, True)
    body: dict[str, object] = {}
    done = 0
    while "after" in body or not body:
        answer = kept[0].world.ask("POST", f"{LETTERS}/discard", body).json
        done += answer["count"]
        body = {"after": answer["next"], "ceiling": answer["ceiling"]} if "next" in answer else {"end": True}
    assert done == 63
