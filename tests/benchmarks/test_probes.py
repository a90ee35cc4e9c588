"""What a flight recording says of pauses and allocations."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.published.probes import Pauses, pauses_of


def collection(total: str, longest: str) -> dict[str, Any]:
    return {"type": "jdk.GarbageCollection", "values": {"sumOfPauses": total, "longestPause": longest}}


def allocated(thread: int, second: int, count: int) -> dict[str, Any]:
    at = f"2026-01-01T00:00:{second:02d}.123456789Z"
    values = {"startTime": at, "allocated": count, "thread": {"javaThreadId": thread}}
    return {"type": "jdk.ThreadAllocationStatistics", "values": values}


def test_pauses_are_added_up() -> None:
    found = pauses_of([collection("PT0.0125S", "PT0.01S"), collection("PT1M1S", "PT1.5S")])
    assert found == Pauses(collections=2, total_ms=61_012.5, longest_ms=1_500.0, allocated_bytes=0)


def test_a_recording_without_a_collection_has_no_pause() -> None:
    assert pauses_of([]) == Pauses(0, 0, 0, 0)


def test_allocations_are_those_between_start_and_end() -> None:
    lasting = [allocated(1, 10, 1_000), allocated(1, 40, 1_500)]
    ended, began = allocated(2, 10, 7_000), allocated(3, 40, 30)
    assert pauses_of([*lasting, ended, began]).allocated_bytes == 530


def test_an_unknown_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="PTX"):
        pauses_of([collection("PTX", "PT0S")])
