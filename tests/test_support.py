"""What tests wait for is named where it does not come true."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import eventually, until


def test_a_wait_gives_what_was_found() -> None:
    turns = iter([[], [], ["found"]])
    assert eventually(lambda: next(turns)) == ["found"]
    turns = iter([[], [], ["found"]])
    assert asyncio.run(until(lambda: next(turns))) == ["found"]


def test_a_wait_in_vain_names_what_did_not_come_true() -> None:
    def never() -> bool:
        return False

    with pytest.raises(AssertionError, match=r"not within 0 s: .*lambda: 1 > 2"):
        eventually(lambda: 1 > 2, seconds=0)
    with pytest.raises(AssertionError, match=r"not within 0 s: .*never"):
        asyncio.run(until(never, seconds=0))
    with pytest.raises(AssertionError, match="not within 0 s: nobody came"):
        eventually(never, "nobody came", seconds=0)
    with pytest.raises(AssertionError, match=r"not within 0 s: \[3\]"):
        asyncio.run(until(never, lambda: [3], seconds=0))
