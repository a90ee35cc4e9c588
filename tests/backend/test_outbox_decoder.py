"""Records of the outbox and the committed state: round trips, hostile bytes, limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headgate.backend.config import TopicsConfig
from headgate.backend.kafka.outbox_records import (
    EVENT,
    HEAD,
    HEADER,
    HELLO,
    TARGET,
    EventRecord,
    HelloRecord,
    OutboxRecord,
    OutboxState,
    OverRecord,
    PassedRecord,
    decode,
    decode_event,
    decode_state,
    encode,
    encode_state,
)
from headgate.backend.kafka.records import RecordError
from headgate.event.kafka import Header
from headgate.outbox.shards import dispatcher_of
from headgate.outbox.takeover import PartitionState, RunState, TakeoverState
from headgate_api.event.model import Event
from headgate_api.limits import LINK_RUNS_MAX, OUTBOX_SOURCES_MAX, OUTBOX_STATE_BYTES_MAX, TAKEOVER_NEAR_MISSES_MAX
from tests.backend.outbox_stream import BROKER, encode_event
from tests.event.strategies import events

PARTITIONS = 4
NUMBER_MAX = 2**63 - 1
numbers = st.integers(0, NUMBER_MAX)
runs = st.integers(1, NUMBER_MAX)
sources = st.integers(0, OUTBOX_SOURCES_MAX - 1)


def read(*headers: Header, key: bytes | None = None, value: bytes | None = None, partition: int = 0) -> OutboxRecord:
    return decode(headers, key, value, partition, PARTITIONS)


@given(
    events(),
    runs,
    numbers,
    sources,
    numbers,
    st.booleans(),
    st.dictionaries(st.integers(0, 2**31 - 1), st.integers(1, 3), min_size=1, max_size=30),
    st.data(),
)
def test_an_event_comes_back(
    event: Event,
    run: int,
    generation: int,
    source: int,
    offset: int,
    more: bool,
    chosen: dict[int, int],
    data: st.DataObject,
) -> None:
    offset = min(offset, NUMBER_MAX - 1_000_000)  # the test's time is the offset and a second
    partition = dispatcher_of(data.draw(st.sampled_from(sorted(chosen))), PARTITIONS)
    targets = tuple((t, v) for t, v in sorted(chosen.items()) if dispatcher_of(t, PARTITIONS) == partition)
    headers, value = encode_event(run, generation, source, offset, targets, event, more=more)
    record = read(*headers, value=value, key=b"any", partition=partition)
    assert record == EventRecord(run, generation, source, offset, more, 1_000_000 + offset, targets, headers[1:], value)
    assert isinstance(record, EventRecord)
    stored = decode_event(record)
    assert (stored.broker, stored.event) == (BROKER, event)


@given(runs, numbers, sources, numbers, st.integers(1, PARTITIONS))
def test_the_other_kinds_come_back(run: int, generation: int, source: int, number: int, partitions: int) -> None:
    count = min(source + 3, OUTBOX_SOURCES_MAX)
    hello = HelloRecord(run, generation, source, number, count, partitions)
    assert read((HEADER, encode(hello))) == hello
    assert read((HEADER, HEAD.pack(2, 0, run, generation, source, number))) == PassedRecord(
        run, generation, source, number
    )
    for over in (OverRecord(run, False, generation), OverRecord(run - 1, True)):
        assert read((HEADER, encode(over))) == over


@given(st.lists(st.tuples(st.sampled_from([HEADER, "ce_id"]), st.none() | st.binary(max_size=60)), max_size=3))
def test_any_bytes_are_a_record_or_an_error_that_names_the_header(headers: list[Header]) -> None:
    try:
        read(*headers)
    except RecordError as error:
        assert HEADER in error.message  # noqa: PT017 - any input may be valid


TARGETS = TARGET.pack(0, 3)
STORED = EVENT.pack(0)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], "first header"),
        ([("ce_id", b"1"), (HEADER, HEAD.pack(2, 0, 1, 0, 0, 0))], "first header"),
        ([(HEADER, HEAD.pack(2, 0, 1, 0, 0, 0))] * 2, "only once"),
        ([(HEADER, None)], "no value"),
        ([(HEADER, b"\x01")], "fewer than"),
        ([(HEADER, HEAD.pack(5, 0, 1, 0, 0, 0))], "no kind 5"),
        ([(HEADER, HEAD.pack(0, 0, 1, 0, 0, 0))], "no kind 0"),
        ([(HEADER, HEAD.pack(2, 2, 1, 0, 0, 0))], "second byte"),
        ([(HEADER, HEAD.pack(2, 1, 1, 0, 0, 0))], "second byte"),
        ([(HEADER, HEAD.pack(2, 0, 0, 0, 0, 0))], "run 0"),
        ([(HEADER, HEAD.pack(2, 0, 1, -1, 0, 0))], "generation -1"),
        ([(HEADER, HEAD.pack(2, 0, 1, 0, 0, -1))], "offset -1"),
        ([(HEADER, HEAD.pack(2, 0, 1, 0, -1, 0))], "source partition -1"),
        ([(HEADER, HEAD.pack(2, 0, 1, 0, OUTBOX_SOURCES_MAX, 0))], "source partition 256"),
        ([(HEADER, HEAD.pack(2, 0, 1, 0, 0, 0) + b"x")], "31 bytes"),
        ([(HEADER, HEAD.pack(2, 0, 1, 0, 0, 0)), ("ce_id", b"1")], "further header"),
        ([(HEADER, HEAD.pack(4, 0, 1, 0, 0, 0))], "over"),
        ([(HEADER, HEAD.pack(4, 0, 1, 0, -1, 7))], "over"),
        ([(HEADER, HEAD.pack(4, 0, -1, 0, -1, 0))], "run -1"),
        ([(HEADER, HEAD.pack(3, 0, 1, 0, 0, 0))], "hello"),
        ([(HEADER, HEAD.pack(3, 0, 1, 0, 2, 0) + HELLO.pack(2, 4))], "source partition 2 of 2"),
        ([(HEADER, HEAD.pack(3, 0, 1, 0, 0, 0) + HELLO.pack(2, 0))], "0 outbox partitions"),
        ([(HEADER, HEAD.pack(3, 0, 1, 0, 0, 0) + HELLO.pack(257, 4))], "reads 257 source partitions"),
        ([(HEADER, HEAD.pack(1, 0, 1, 0, 0, 0) + STORED)], "no list of targets"),
        ([(HEADER, HEAD.pack(1, 0, 1, 0, 0, 0) + STORED + TARGETS[:3])], "no list of targets"),
        ([(HEADER, HEAD.pack(1, 0, 1, 0, 0, 0) + STORED + TARGETS * 65_537)], "no list of targets"),
        ([(HEADER, HEAD.pack(1, 0, 1, 0, 0, 0) + STORED + TARGETS * 2)], "target 0 with verdict 3 behind target 0"),
        ([(HEADER, HEAD.pack(1, 0, 1, 0, 0, 0) + STORED + TARGET.pack(0, 4))], "verdict 4"),
        ([(HEADER, HEAD.pack(1, 0, 1, 0, 0, 0) + STORED + TARGET.pack(-1, 3))], "target -1"),
        ([(HEADER, HEAD.pack(1, 0, 1, 0, 0, 0) + STORED + TARGET.pack(1, 3))], "belongs to partition 2"),
    ],
)
def test_what_is_no_record_is_refused_with_its_reason(headers: list[Header], said: str) -> None:
    with pytest.raises(RecordError) as caught:
        read(*headers)
    assert HEADER in caught.value.message
    assert said in caught.value.message


def test_a_record_that_is_no_event_has_no_value() -> None:
    for key, value in ((b"k", None), (None, b"v")):
        with pytest.raises(RecordError, match="a key, a value"):
            read((HEADER, HEAD.pack(2, 0, 1, 0, 0, 0)), key=key, value=value)


# --- the committed state ------------------------------------------------------------------------------


@st.composite
def states(draw: st.DrawFn) -> OutboxState:
    numbers = sorted(draw(st.sets(st.integers(1, NUMBER_MAX), max_size=LINK_RUNS_MAX)))
    alive = tuple(
        RunState(n, draw(st.integers(0, NUMBER_MAX)), draw(st.integers(1, OUTBOX_SOURCES_MAX)), draw(st.booleans()))
        for n in numbers
    )
    partitions = {}
    for source in draw(st.sets(st.integers(0, OUTBOX_SOURCES_MAX - 1), max_size=5)):
        roles = [draw(st.sampled_from(["contends", "retired", "neither"])) for _ in numbers]
        contenders = tuple(n for n, role in zip(numbers, roles, strict=True) if role == "contends")
        retired = tuple(n for n, role in zip(numbers, roles, strict=True) if role == "retired")
        misses = draw(st.integers(0, TAKEOVER_NEAR_MISSES_MAX)) if len(contenders) > 1 else 0
        watermark = draw(st.integers(0, NUMBER_MAX))
        partitions[source] = PartitionState(watermark, contenders, retired, bool(contenders), misses)
    newest = draw(st.integers(numbers[-1] if numbers else 0, NUMBER_MAX))
    return OutboxState(newest, TakeoverState(alive, partitions))


@given(states())
def test_a_state_comes_back(state: OutboxState) -> None:
    text = encode_state(state)
    assert len(text.encode()) <= OUTBOX_STATE_BYTES_MAX
    assert decode_state(text) == state


def test_the_largest_state_fits_into_a_commit() -> None:
    numbers = range(NUMBER_MAX - LINK_RUNS_MAX + 1, NUMBER_MAX + 1)
    alive = tuple(RunState(n, NUMBER_MAX, OUTBOX_SOURCES_MAX, True) for n in numbers)
    each = PartitionState(NUMBER_MAX, tuple(numbers), (), True, TAKEOVER_NEAR_MISSES_MAX)
    state = OutboxState(NUMBER_MAX, TakeoverState(alive, dict.fromkeys(range(OUTBOX_SOURCES_MAX), each)))
    text = encode_state(state)
    assert len(text.encode()) <= OUTBOX_STATE_BYTES_MAX
    assert decode_state(text) == state


def test_more_source_partitions_than_a_state_holds_are_refused_in_the_configuration() -> None:
    TopicsConfig.model_validate({"events": {"partitions": OUTBOX_SOURCES_MAX}})
    with pytest.raises(ValidationError, match=r"events\.partitions 257 is more than 256"):
        TopicsConfig.model_validate({"events": {"partitions": OUTBOX_SOURCES_MAX + 1}})


@given(st.text(max_size=80))
def test_any_text_is_a_state_or_an_error(text: str) -> None:
    try:
        decode_state(text)
    except RecordError as error:
        assert "committed state" in error.message  # noqa: PT017 - any input may be valid


@pytest.mark.parametrize("index", range(0, 42))
def test_damage_never_goes_unseen(index: int) -> None:
    good = OutboxState(9, TakeoverState((RunState(9, 3, 1, True),), {0: PartitionState(5, (9,), (), True)}))
    text = encode_state(good)
    damaged = text[:index] + ("B" if text[index : index + 1] != "B" else "C") + text[index + 1 :]
    try:
        assert decode_state(damaged) != good
    except RecordError as error:
        assert "committed state" in error.message  # noqa: PT017 - damage may be a state, too
