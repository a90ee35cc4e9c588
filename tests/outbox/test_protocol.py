"""The match link's bytes: complete events out, whatever the cuts; nonsense refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.outbox.link_format import HELLO_BYTES, FrameParser, Hello, LinkProtocolError, decode_hello, encode_hello
from tests.outbox.frames import encode_generation, encode_passed, encode_row

TOKEN = bytes(range(32))


def test_hello_is_84_bytes_at_the_places_of_the_spec():
    data = encode_hello(Hello(7, 12, partition=1, partitions=2, start=812, dispatcher=3, dispatchers=4), TOKEN)
    assert len(data) == HELLO_BYTES
    assert data[:4] == b"HGM1"
    assert data[4:36] == TOKEN
    assert struct.unpack_from("<qq", data, 36) == (7, 12)
    assert struct.unpack_from("<ii", data, 52) == (1, 2)
    assert struct.unpack_from("<q", data, 60) == (812,)
    assert struct.unpack_from("<ii", data, 68) == (3, 4)
    assert decode_hello(data) == (Hello(7, 12, 1, 2, 812, 3, 4), TOKEN)


@pytest.mark.parametrize(
    "change",
    [
        (0, b"HGM2"),
        (36, struct.pack("<q", 0)),
        (36, struct.pack("<q", -1)),
        (44, struct.pack("<q", -1)),
        (52, struct.pack("<i", -2)),
        (52, struct.pack("<i", 1 << 20)),
        (56, struct.pack("<i", 0)),
        (60, struct.pack("<q", -1)),
        (68, struct.pack("<i", -1)),
        (68, struct.pack("<i", 1)),
        (72, struct.pack("<i", 17)),
        (76, b"x"),
    ],
)
def test_hello_out_of_range_is_refused(change: tuple[int, bytes]):
    data = bytearray(encode_hello(Hello(7, 12, 1, 2, 812), TOKEN))
    at, value = change
    data[at : at + len(value)] = value
    with pytest.raises(LinkProtocolError):
        decode_hello(bytes(data))


def test_driver_hello_names_no_run():
    assert decode_hello(encode_hello(Hello(0, 0, -1, 1, 0), TOKEN))[0].is_driver
    with pytest.raises(LinkProtocolError):
        decode_hello(encode_hello(Hello(1, 0, -1, 1, 0), TOKEN))


def test_an_event_is_complete_when_something_follows_it():
    parser = FrameParser(10, 1)
    assert parser.feed(encode_row(3, 1, 10) + encode_row(1, 2, 10)) == [([], 10, None)]
    assert parser.feed(encode_row(3, 1, 12)) == [([(10, 1, 3), (10, 2, 1)], 12, None)]
    assert parser.feed(encode_passed(13)) == [([(12, 1, 3)], 13, None)]
    assert parser.feed(encode_passed(20)) == [([], 20, None)]


@pytest.mark.parametrize(("verdicts", "merged"), [((1, 2), 2), ((2, 1), 2), ((3, 1), 3), ((1, 3), 3), ((2, 2), 2)])
def test_rows_of_one_event_and_target_merge_by_the_higher_verdict(verdicts: tuple[int, int], merged: int):
    parser = FrameParser(0, 1)
    data = b"".join(encode_row(v, 9, 5) for v in verdicts) + encode_passed(6)
    assert parser.feed(data) == [([(5, 9, merged)], 6, None)]


def test_a_passed_frame_that_trails_the_rows_says_nothing_new():
    parser = FrameParser(0, 1)
    assert parser.feed(encode_row(3, 1, 7) + encode_passed(5) + encode_passed(7)) == [([], 7, None)]
    assert parser.feed(encode_row(3, 2, 7) + encode_passed(8)) == [([(7, 1, 3), (7, 2, 3)], 8, None)]


def test_events_are_cut_where_the_generation_changes():
    parser = FrameParser(10, 1)
    data = encode_row(3, 1, 10) + encode_passed(12) + encode_generation(2) + encode_row(3, 1, 12) + encode_passed(13)
    assert parser.feed(data) == [([(10, 1, 3)], 12, 2), ([(12, 1, 3)], 13, None)]
    assert parser.feed(encode_generation(4) + encode_generation(5)) == [([], 13, 4), ([], 13, 5), ([], 13, None)]


@pytest.mark.parametrize(
    "data",
    [
        encode_row(3, 1, 9),  # below the start
        encode_passed(12) + encode_row(3, 1, 11),
        encode_row(3, 1, 12) + encode_row(3, 1, 11),
        encode_row(0, 1, 12),
        encode_row(4, 1, 12),
        encode_row(3, -1, 12),
        encode_passed(-1),
        struct.pack("<BBiq", 2, 1, 0, 12),
        struct.pack("<BBiq", 3, 1, 0, 12),
        encode_generation(1),  # that of the hello
        encode_generation(3) + encode_generation(2),
        encode_row(3, 1, 12) + encode_generation(2),  # inside an event
        struct.pack("<BBiq", 0, 0, 0, 0),
        struct.pack("<BBiq", 255, 255, -1, -1),
    ],
)
def test_frames_that_cannot_be_are_refused(data: bytes):
    with pytest.raises(LinkProtocolError):
        FrameParser(10, 1).feed(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes):
    parser = FrameParser(0, 1)
    try:
        fed = parser.feed(data)
    except LinkProtocolError:
        return
    assert all(offset < passed for rows, passed, _ in fed for offset, _, _ in rows)


EVENTS = st.lists(st.dictionaries(st.integers(0, 3), st.lists(st.integers(1, 3), min_size=1, max_size=3)), max_size=6)


@given(EVENTS, st.data())
def test_cuts_do_not_matter(events: list[dict[int, list[int]]], data: st.DataObject):
    frames, expected, changes = b"", [], []
    for offset, targets in enumerate(events):
        for target, verdicts in targets.items():
            frames += b"".join(encode_row(v, target, offset) for v in verdicts)
            expected.append((offset, target, max(verdicts)))
        if data.draw(st.booleans()):
            frames += encode_passed(offset + 1)
            if data.draw(st.booleans()):
                frames += encode_generation(offset + 2)
                changes.append((offset + 1, offset + 2))
    frames += encode_passed(len(events))
    parser, rows, passed, changed, at = FrameParser(0, 1), [], 0, [], 0
    while at < len(frames):
        size = data.draw(st.integers(1, len(frames) - at))
        for more, now, then in parser.feed(frames[at : at + size]):
            assert now >= passed
            assert all(passed <= offset < now for offset, _, _ in more)
            rows, passed = rows + more, now
            changed += [] if then is None else [(now, then)]
        at += size
    assert (rows, changed) == (expected, changes)
    assert passed == len(events)
