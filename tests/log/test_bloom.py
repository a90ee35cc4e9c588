"""A filter never denies a value that it holds, and admits others about as rarely as the formula says."""

from __future__ import annotations

import pytest
import xxhash
from benchmarks.bloom import false_positive_rate
from hypothesis import given
from hypothesis import strategies as st

from headgate.log.bloom import build, hash_count, hash_value, might_contain
from headgate_api.limits import BLOOM_BYTES_MAX, BLOOM_BYTES_MIN
from tests.support import times

VALUES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), min_size=1, max_size=60)


def specified(values: set[str], size_bytes: int, k: int) -> bytes:
    """The filter as docs/spec/log-format.md says it, word by word."""
    m = 8 * size_bytes
    byte = bytearray(size_bytes)
    for value in values:
        h = xxhash.xxh64_intdigest(value.encode("utf-8"), seed=0)
        g, b = h & 0xFFFFFFFF, h >> 32
        for _ in range(k):
            j = (g * m) >> 32
            byte[j >> 3] |= 1 << (j & 7)
            g = (g * 0x9E3779B1 + b) & 0xFFFFFFFF
    return bytes(byte)


@given(VALUES, st.integers(BLOOM_BYTES_MIN, BLOOM_BYTES_MAX))
def test_filter_is_the_specified_one(values, size_bytes):
    bloom = build(values, size_bytes)
    assert bloom.bits == specified(set(values), size_bytes, bloom.hash_count)
    assert bloom.hash_count == hash_count(8 * size_bytes, len(set(values)))
    assert all(might_contain(bloom.bits, bloom.hash_count, [hash_value(value)]) for value in values)


def test_no_false_negative_in_any_probe():
    probed, wanted = 0, times(40_000, 1_000_000)
    for count in (1, 2, 5, 10, 20, 50, 100, 250, 1000):
        size_bytes = BLOOM_BYTES_MIN + probed % (BLOOM_BYTES_MAX - BLOOM_BYTES_MIN + 1)
        for round_number in range(-(-wanted // (8 * count))):
            values = [f"{count}/{round_number}/{i}" for i in range(count)]
            bits, k, _ = build(values, size_bytes)
            for value in values:
                assert might_contain(bits, k, [hash_value(value)])
            probed += count
    assert probed >= wanted


@pytest.mark.parametrize(
    ("size_bytes", "count"), [(16, 1), (16, 2), (16, 5), (16, 10), (16, 30), (64, 40), (255, 100), (255, 255)]
)
def test_false_positive_rate_is_near_the_formula(size_bytes, count):
    # The rate of one filter varies with its values, so it is the mean over many filters that is compared.
    filters, probes_each = 60, 700
    hits = 0
    for number in range(filters):
        bits, k, _ = build([f"in {number} {i}" for i in range(count)], size_bytes)
        hits += sum(might_contain(bits, k, [hash_value(f"out {number} {i}")]) for i in range(probes_each))
    measured = hits / (filters * probes_each)
    expected = false_positive_rate(size_bytes, hash_count(8 * size_bytes, count), count)
    assert expected * 0.8 - 0.001 <= measured <= expected * 1.2 + 0.001


def test_ten_values_in_sixteen_bytes_beat_two_hashes_ten_times():
    k = hash_count(128, 10)
    assert false_positive_rate(16, k, 10) * 9 < false_positive_rate(16, 2, 10)


@pytest.mark.parametrize(
    ("values", "stored", "unfiltered"),
    [
        ([], False, False),
        ([None], False, True),
        ([""], False, True),
        (["a"], True, False),
        (["a", None, ""], True, True),
    ],
)
def test_records_without_value_are_flagged(values, stored, unfiltered):
    bloom = build(values, 16)
    assert (bool(bloom.bits), bloom.hash_count > 0, bloom.unfiltered) == (stored, stored, unfiltered)


def test_absent_filter_holds_nothing():
    assert not might_contain(b"", 0, [hash_value("a")])


def test_any_wanted_value_is_enough():
    bits, k, _ = build(["a"], 255)
    assert might_contain(bits, k, [hash_value("b"), hash_value("a")])
    assert not might_contain(bits, k, [hash_value("b"), hash_value("c")])
    assert not might_contain(bits, k, [])


@pytest.mark.parametrize("size_bytes", [0, 15, 256])
def test_size_out_of_range_is_refused(size_bytes):
    with pytest.raises(ValueError, match="bytes"):
        build(["a"], size_bytes)
