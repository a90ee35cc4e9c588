"""The events match what the program says that they match, by the product's own reading of filters and requests."""

from __future__ import annotations

import pytest
from benchmarks.published.setups import (
    BATCH,
    Events,
    Post,
    Setup,
    filter_text,
    noisy_post,
    quiet_post,
    setups,
    triggers_of,
)

from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.evaluate import EventView
from headgate_api.event.http import decode_request
from headgate_api.event.model import Event


def read(post: Post) -> tuple[str, list[Event]]:
    """The namespace that a request goes to, and its events."""
    head, _, body = post.bytes.partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    headers = [(name, value.strip()) for name, _, value in (field.partition(b":") for field in fields)]
    assert (b"content-length", str(len(body)).encode()) in headers
    return first.split()[1].decode().split("/")[1], list(decode_request(headers, body))


def wanted_by(setup: Setup, namespace: str, event: Event) -> int:
    """How many triggers of the setup want the event."""
    activation = EventView(event).activation
    count = 0
    for trigger in triggers_of(setup, "http://localhost/"):
        if trigger["metadata"]["namespace"] == namespace:
            text = trigger["spec"].get("filter", {"expression": "true"})["expression"]
            count += compile_expression(text).evaluate(activation).kind is OutcomeKind.TRUE
    return count


@pytest.mark.parametrize("name", ["3", "15", "none"])
@pytest.mark.parametrize("percent", [0, 10, 100])
def test_so_many_events_in_a_hundred_are_wanted_once(name: str, percent: float) -> None:
    setup = setups(3)[name]
    made = Events(setup, percent)
    posts = [made.single() for _ in range(50)]
    for post in posts:
        namespace, (event,) = read(post)
        assert wanted_by(setup, namespace, event) == post.wanted
    assert sum(post.wanted for post in posts) == 50 * percent / 100


@pytest.mark.parametrize("name", ["3", "none"])
def test_a_batch_is_wanted_as_often_as_it_says(name: str) -> None:
    setup = setups(2)[name]
    post = Events(setup, 10, first=7).batch()
    namespace, events = read(post)
    assert [event.id for event in events] == [str(7 + number) for number in range(BATCH)]
    assert sum(wanted_by(setup, namespace, event) for event in events) == post.wanted
    assert post.events == BATCH


def test_quiet_brokers_want_everything_and_the_noisy_one_what_it_says() -> None:
    setup = setups(2)["3"]
    for post in (quiet_post(8), noisy_post(setup, 1, wanted=True), noisy_post(setup, 1, wanted=False)):
        namespace, (event,) = read(post)
        assert wanted_by(setup, namespace, event) == post.wanted


def test_a_filter_has_five_conditions_and_no_other_filter_its_field() -> None:
    setup = setups(5)["15"]
    texts = [one["spec"]["filter"]["expression"] for one in triggers_of(setup, "http://x/") if "filter" in one["spec"]]
    assert len(texts) == len({text.split(" && ")[-1].split(" == ")[0] for text in texts}) == setup.filters
    assert filter_text("a", "b").count(" && ") == 4
