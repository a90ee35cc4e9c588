"""What needs attention, search in lists, and ten thousand triggers in one page."""

from __future__ import annotations

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.api.queries import text_search
from headgate.objects.store.attention import troubles
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import Condition, Kind
from headgate_api.objects.metadata import TRUE, false, warning
from tests.objects.support import broker, trigger


def test_which_conditions_are_told() -> None:
    ready, fine = false("Ready", "X", "x"), Condition(type="Fine", status=TRUE)
    broken, warned = false("BrokerReady", "X", "x"), warning("FilterHealthy", "Y", "y")
    assert [one.type for one in troubles((ready, fine, broken))] == ["BrokerReady"], "it says why Ready is False"
    assert [one.type for one in troubles((ready, warned))] == ["Ready", "FilterHealthy"], "a warning does not"
    assert [one.type for one in troubles((warned, fine))] == ["FilterHealthy"]
    assert troubles((fine,)) == []


def test_false_conditions_of_each_namespace(store: Store) -> None:
    admission = Admission(store)
    for namespace in ("a", "b"):
        admission.create(Kind.BROKER, broker("orders"), namespace=namespace)
        admission.create(Kind.TRIGGER, trigger("fine", broker="orders"), namespace=namespace)
        for name in ("lost", "lost-too"):
            admission.create(Kind.TRIGGER, trigger(name, broker="nosuch"), namespace=namespace)
    # A text of a client that looks like a condition is none.
    hostile = trigger("hostile", broker="orders", filter={"attributes": {"status": "False"}})
    admission.create(Kind.TRIGGER, hostile, namespace="a")
    Reconciler(store).step()
    found, count = store.attention.read("a", 100)
    assert {(one.kind, one.namespace, one.name, one.reason) for one in found if one.type == "BrokerReady"} == {
        ("Trigger", "a", "lost", "BrokerDoesNotExist"),
        ("Trigger", "a", "lost-too", "BrokerDoesNotExist"),
    }
    assert {one.namespace for one in found} == {"a"}
    assert "hostile" not in {one.name for one in found}
    assert all(one.since for one in found)
    assert count == len(found)
    whole, count_of_whole = store.attention.read(None, 1)
    assert (len(whole), count_of_whole) == (1, 2 * count)
    assert store.attention.counts("a")[Kind.TRIGGER] == 4
    assert store.attention.counts(None)[Kind.BROKER] == 3, "default/default is there, too"
    routed = store.attention.routed_by_broker(["a/orders", "b/orders", "b/none"])
    assert routed == {("a/orders", "Trigger"): 2, ("b/orders", "Trigger"): 1}


@pytest.mark.parametrize(
    ("text", "name", "body", "found"),
    [
        ("GOLD", "gold", b"{}", True),
        ("gold silver", "gold", b'{"spec":{"a":"Silver"},"status":{}}', True),
        ("gold silver", "gold", b'{"spec":{"a":1},"status":{"b":"silver"}}', False),
        ("secret", "gold", b'{"metadata":{"x":"secret"},"spec":{},"status":{}}', False),
        ("inner", "x", b'{"metadata":{"a":"\\"spec\\":{ inner"},"spec":{"b":1},"status":{}}', False),
        ("deep", "x", b'{"spec":{"a":"\\"status\\":{"},"status":{}}', False),
        ("tail", "x", b'{"spec":{"a":"\\"status\\":{ tail"},"status":{}}', True),
        ("\ud800", "x", b"{}", False),
    ],
)
def test_what_a_search_finds(text: str, name: str, body: bytes, found: bool) -> None:
    test = text_search(text)
    assert test is not None
    assert test(name, body) is found


def test_searches_that_want_everything_or_are_refused() -> None:
    assert text_search("") is text_search("  ") is None
    with pytest.raises(MalformedObjectError):
        text_search("x" * 1_000)


def test_ten_thousand_triggers_are_searched(store: Store) -> None:
    """Whatever is looked for: the name of the last one, what nobody has, or what all have."""
    from headgate_api.objects.kinds import Trigger, decode_stored

    admission = Admission(store)
    admission.create(Kind.TRIGGER, trigger("t-00000", filter={"attributes": {"type": "order.paid"}}))
    made = store.page(Kind.TRIGGER, "default").items[0]
    body = made.body
    with store._database.write() as connection:
        connection.executemany(
            "INSERT INTO objects (kind, namespace, name, version, labels, body) VALUES ('Trigger', ?, ?, ?, '{}', ?)",
            [("default", f"t-{n:05}", 10_000 + n, body.replace(b"t-00000", b"t-%05d" % n)) for n in range(1, 10_000)],
        )
    assert isinstance(decode_stored(Kind.TRIGGER, body), Trigger)
    for word, names in (("t-09999", ["t-09999"]), ("nosuch", []), ("order.paid", [f"t-{n:05}" for n in range(50)])):
        page = store.page(Kind.TRIGGER, None, limit=50, test=text_search(word))
        assert [item.key.name for item in page.items] == names
        assert bool(page.more) is (len(names) == 50)
