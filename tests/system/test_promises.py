"""Whether what filters that change promise is told apart: lost, wrong, and what nobody can say."""

from __future__ import annotations

import pytest

from headgate_api.event.model import DataKind, Event
from tests.system.promises import Life, Outage, Promises

ONES, TWOS, BOTH = "data.n == 1", "data.n == 2", "data.n > 0"


class Story:
    """Promises whose clock goes on by a second with everything that is asked of it."""

    def __init__(self) -> None:
        self.now = 0.0
        kinds = [Event("1.0", "x", "/s", "t", data_kind=DataKind.JSON, data=b'{"n":%d}' % n) for n in range(3)]
        self.promises = Promises(kinds, self._tick)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def event(self, n: int) -> int:
        numbers = self.promises.sends([n])
        self.promises.acknowledged(numbers)
        return numbers[0]

    def trigger(self, cel: str, path: str = "a") -> Life:
        life = self.promises.begins(path, cel)
        self.promises.is_ready(life, life.versions[0])
        return life

    def change(self, life: Life, cel: str) -> None:
        self.promises.is_ready(life, self.promises.changes(life, cel))


@pytest.fixture
def story() -> Story:
    return Story()


def test_what_a_trigger_was_promised_must_come(story: Story) -> None:
    story.event(1)  # before it was Ready
    life = story.trigger(ONES)
    first, second = story.event(1), story.event(1)
    story.event(2)
    story.promises.arrives("a", second)
    story.change(life, TWOS)
    assert [(life.path, numbers) for life, _, numbers in story.promises.check()] == [("a", {first})]
    (told,) = story.promises.lost()
    assert f"a lacks event {first}," in told
    story.promises.arrives("a", first)
    assert story.promises.lost() == []
    assert (story.promises.promised, story.promises.delivered, story.promises.wrong) == (2, 2, [])


def test_while_a_filter_changes_either_may_decide(story: Story) -> None:
    life = story.trigger(ONES)
    version = story.promises.changes(life, TWOS)
    numbers = [story.event(n) for n in (1, 2, 1, 2)]
    story.promises.is_ready(life, version)
    for number in numbers[2:]:
        story.promises.arrives("a", number)
    assert story.promises.lost() == []
    assert story.promises.wrong == []


def test_what_no_filter_took_is_wrong(story: Story) -> None:
    life = story.trigger(ONES)
    story.promises.arrives("a", story.event(2))
    story.change(life, TWOS)
    story.promises.arrives("a", late := story.event(1))
    story.promises.check()
    assert len(story.promises.wrong) == 2
    assert f"a got event {late} at" in story.promises.wrong[1]


def test_an_event_that_comes_late_is_that_of_the_filter_of_its_time(story: Story) -> None:
    life = story.trigger(ONES)
    number = story.event(1)
    story.change(life, TWOS)
    story.promises.arrives("a", number)
    assert story.promises.lost() == []
    assert story.promises.wrong == []


def test_a_trigger_that_is_gone_gets_nothing_once_that_is_in_force(story: Story) -> None:
    life = story.trigger(ONES)
    number = story.event(1)
    story.promises.closes(life)
    assert story.promises.missing(life, life.versions) == {number}
    story.promises.arrives("a", number)
    assert story.promises.missing(life, life.versions) == set()
    story.event(1)  # it may be dropped
    story.promises.is_deleted(life)
    story.promises.arrives("a", story.event(1))
    story.trigger(TWOS, "b")
    story.promises.check()
    assert story.promises.wrong == []
    story.promises.arrives("a", story.event(1))
    assert story.promises.lost() == []
    assert len(story.promises.wrong) == 1


def test_a_change_that_was_asked_for_before_a_trigger_was_gone_says_nothing_of_that(story: Story) -> None:
    life = story.trigger(ONES)
    other = story.promises.begins("b", TWOS)
    story.promises.is_deleted(life)
    story.promises.is_ready(other, other.versions[0])
    story.promises.arrives("a", story.event(1))
    story.promises.check()
    assert story.promises.wrong == []


def test_a_filter_that_means_what_it_did_says_nothing_of_what_else_is_in_force(story: Story) -> None:
    life, other = story.trigger(ONES), story.trigger(TWOS, "b")
    story.promises.closes(life)
    story.promises.is_deleted(life)
    story.change(other, f"{TWOS} || {TWOS}")
    story.promises.arrives("a", story.event(1))
    story.promises.check()
    assert story.promises.wrong == []


def test_what_an_outage_found_unmatched_is_decided_by_the_newest_filter(story: Story) -> None:
    life = story.trigger(BOTH)
    story.event(1)
    kept = story.event(2)
    story.promises.outages.append(Outage(story.promises.clock()))
    story.change(life, TWOS)
    assert story.promises.check() == [], "nobody can say before it is over"
    story.promises.outages[0].ended_at = story.promises.clock()
    after = story.event(2)
    story.change(life, ONES)
    lost = story.promises.lost()
    assert [told.split(",")[0] for told in lost] == [f"a lacks event {kept}", f"a lacks event {after}"]


def test_what_was_never_acknowledged_is_not_promised(story: Story) -> None:
    story.trigger(ONES)
    story.promises.sends([1])
    assert story.promises.accepted == 0
    assert story.promises.lost() == []
