"""Places and turns that all share: nobody takes what others need, and who has none finds room."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import pytest

from headgate.auth.user import ANONYMOUS_NAME
from headgate.observe import metrics
from headgate.shares import FairPlaces, FairThreads, PlacesTakenError, Shares

MOST = 256


def fill(places: FairPlaces, stack: contextlib.ExitStack, namespace: str, user: str) -> int:
    """Takes as many places as a user gets; how many those are."""
    for count in range(MOST + 1):
        try:
            stack.enter_context(places.held(namespace, user))
        except PlacesTakenError:
            return count
    raise AssertionError("there are more places than there are")


def test_one_user_alone_has_most_places_and_leaves_room_for_others() -> None:
    places = FairPlaces("readers", "READERS_MAX", MOST)
    with contextlib.ExitStack() as stack:
        loud = fill(places, stack, "loud", "eve")
        assert MOST // 2 < loud < MOST
        beside, other = fill(places, stack, "loud", "ann"), fill(places, stack, "quiet", "bob")
        assert beside > 5, "another user of the same namespace"
        assert other > 30, "another namespace"
        assert fill(places, stack, "loud", "eve") == 0, "who has his share gets no more meanwhile"
        assert len(places) == loud + beside + other < MOST
    assert len(places) == 0
    with places.held("loud", "eve"):
        pass


@pytest.mark.parametrize("most", [1, 2, 4, 8, 64, MOST])
def test_a_single_user_finds_room_whatever_others_do(most: int) -> None:
    places = FairPlaces("readers", "READERS_MAX", most)
    with contextlib.ExitStack() as stack:
        taken = fill(places, stack, "loud", "eve")
        assert taken >= most // 2
        if most > 3:  # of fewer there is no part to leave
            stack.enter_context(places.held("quiet", "ann"))


def test_many_users_of_a_namespace_and_a_user_of_many_namespaces_count_as_one() -> None:
    for claims in ([("loud", f"u{n}") for n in range(MOST)], [(f"ns{n}", "eve") for n in range(MOST)]):
        places = FairPlaces("readers", "READERS_MAX", MOST)
        with contextlib.ExitStack() as stack:
            taken = 0
            for namespace, user in claims:
                with contextlib.suppress(PlacesTakenError):
                    stack.enter_context(places.held(namespace, user))
                    taken += 1
            assert taken == MOST * 3 // 4
            assert fill(places, stack, "quiet", "ann") > 30


def test_without_a_namespace_users_alone_count() -> None:
    places = FairPlaces("calls", "RPCS_MAX", MOST)
    with contextlib.ExitStack() as stack:
        assert fill(places, stack, "", "eve") == MOST * 3 // 4
        assert fill(places, stack, "", "ann") == (MOST // 4) * 3 // 4
        assert fill(places, stack, "", "bob") > 0


def test_nobody_knows_who_the_anonymous_are_so_namespaces_alone_share() -> None:
    """As on a server that asks nobody who he is."""
    places = FairPlaces("readers", "READERS_MAX", MOST)
    with contextlib.ExitStack() as stack:
        assert fill(places, stack, "loud", ANONYMOUS_NAME) > MOST // 2
        assert fill(places, stack, "quiet", ANONYMOUS_NAME) > 30
    with contextlib.ExitStack() as stack:
        assert fill(places, stack, "", ANONYMOUS_NAME) == MOST * 3 // 4
        assert fill(places, stack, "", "ann") > 30, "who shows who he is"


def test_places_of_different_sizes_are_shared_by_their_sizes() -> None:
    piece, most = 1 << 20, 64 << 20
    places = FairPlaces("bodies", "BODIES_MAX", most, "bytes")
    claims: dict[tuple[str, str], int] = {}
    with contextlib.ExitStack() as stack:
        for claim in (("loud", "eve"), ("loud", "ann"), ("quiet", "bob")):
            with contextlib.suppress(PlacesTakenError):
                while True:
                    grow = stack.enter_context(places.held(*claim, piece))
                    grow(piece)
                    claims[claim] = claims.get(claim, 0) + 2
            with pytest.raises(PlacesTakenError, match=r"67108864 bytes for bodies \(BODIES_MAX\)"):
                places.check(*claim, piece)
        assert most // 2 < claims["loud", "eve"] * piece < most
        assert claims["loud", "ann"] >= 2
        assert claims["quiet", "bob"] >= 8
        assert len(places) <= most
    assert len(places) == 0
    with pytest.raises(PlacesTakenError), places.held("quiet", "bob", most + 1):
        pass
    with places.held("quiet", "bob", most):
        pass
    assert not places._held, "nothing is kept of who holds nothing"


def test_who_has_more_than_his_share_cannot_grow_until_he_has_less() -> None:
    """So what one holds when others come shrinks to his share as his bodies end."""
    places = FairPlaces("bodies", "BODIES_MAX", 64, "bytes")
    with places.held("loud", "eve", 40) as loud, places.held("quiet", "ann", 20) as quiet:
        with pytest.raises(PlacesTakenError):
            loud(1)
        with pytest.raises(PlacesTakenError):
            quiet(1)
        assert len(places) == 60, "what was refused is not counted"
        places.take("loud", "eve", -30)
        quiet(1)
        loud(1)
        places.take("loud", "eve", 30)
    assert len(places) == 0


def test_a_refusal_names_who_what_and_the_limit_and_is_counted() -> None:
    places = FairPlaces("watches", "WATCHES_MAX", 64)
    refused = metrics.PLACES_REFUSED.labels("user")
    before = refused.value
    with contextlib.ExitStack() as stack:
        taken = fill(places, stack, "team", "eve")
        with pytest.raises(PlacesTakenError, match=r"'eve'.*'team'.* 64 .*watches.*WATCHES_MAX") as found:
            places.check("team", "eve")
        assert (found.value.code, found.value.http_status, found.value.retriable) == ("watches", 429, True)
        assert "try again later" in found.value.hint
        assert refused.value == before + 2
        assert metrics.PLACES.labels("watches").value == taken > 0
    assert metrics.PLACES.labels("watches").value == 0


def test_turns_go_round_by_namespace_then_user_then_age() -> None:
    waiting = Shares[str]()
    for number in range(3):
        waiting.add("loud", "eve", f"eve{number}")
    waiting.add("loud", "bob", "bob0")
    waiting.add("quiet", "ann", "ann0")
    waiting.add("quiet", "ann", "ann1")
    order = [waiting.pop_next() for _ in range(len(waiting))]
    assert order == ["eve0", "ann0", "bob0", "ann1", "eve1", "eve2"]
    assert len(waiting) == 0


def test_the_largest_gives_up_its_oldest() -> None:
    kept = Shares[str]()
    for name in ("a", "b", "c"):
        kept.add("loud", "eve", name)
    kept.add("loud", "bob", "d")
    kept.add("quiet", "ann", "e")
    kept.remove("loud", "eve", "a")
    kept.add("loud", "eve", "a")  # heard of again
    assert kept.largest() == "b"
    assert len(kept) == 5


def test_threads_give_a_newcomer_the_next_turn() -> None:
    threads = FairThreads(1, "turn")
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def hold() -> None:
        begun.set()
        assert go_on.wait(10)

    loud, quiet = threads.of("loud", "eve"), threads.of("quiet", "ann")
    loud.submit(hold)
    assert begun.wait(10)
    works = [loud.submit(order.append, "loud") for _ in range(20)]
    works.append(quiet.submit(order.append, "quiet"))
    works[3].cancel()
    go_on.set()
    threads.shutdown()
    assert Counter(order) == {"loud": 19, "quiet": 1}
    assert order.index("quiet") <= 1


def test_who_hangs_in_threads_leaves_some_for_others_and_loses_none_of_his_work() -> None:
    threads = FairThreads(32, "hang", hangs=True)
    begun, go_on = threading.Semaphore(0), threading.Event()
    order: list[str] = []

    def hang(name: str) -> None:
        begun.release()
        assert go_on.wait(30)
        order.append(name)

    def begin(count: int) -> None:
        for _ in range(count):
            assert begun.acquire(timeout=30)

    try:
        works = [threads.of("loud", "eve").submit(hang, "eve") for _ in range(40)]
        begin(23)
        works += [threads.of("loud", "bob").submit(hang, "bob") for _ in range(20)]
        begin(1)  # another user of the same namespace
        works += [threads.of("quiet", "ann").submit(hang, "ann") for _ in range(20)]
        begin(6)
        works.append(threads.of("new", "joe").submit(hang, "joe"))
        begin(1)
        assert threads._running == {
            ("loud", None): 24,
            ("loud", "eve"): 23,
            ("loud", "bob"): 1,
            ("quiet", None): 6,
            ("quiet", "ann"): 6,
            ("new", None): 1,
            ("new", "joe"): 1,
        }
    finally:
        go_on.set()
        threads.shutdown()
    assert all(work.done() for work in works)
    assert Counter(order) == {"eve": 40, "bob": 20, "ann": 20, "joe": 1}
    assert not threads._running, "nothing is kept of who has nothing under way"


def test_threads_that_are_given_up_begin_nothing_more() -> None:
    threads = FairThreads(1, "hang", hangs=True)
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def hang() -> None:
        begun.set()
        assert go_on.wait(30)

    threads.of("ns").submit(hang)
    assert begun.wait(30)
    threads.of("ns").submit(order.append, "late")
    threads.give_up()
    go_on.set()
    threads._threads.shutdown(wait=True)
    assert order == []


def test_what_fails_in_a_thread_fails_who_waits() -> None:
    threads = FairThreads(1, "turn")
    with pytest.raises(ValueError, match="invalid literal"):
        threads.of("ns").submit(int, "x").result(10)
    assert threads.of("ns").submit(int, "1").result(10) == 1
    threads.shutdown()
