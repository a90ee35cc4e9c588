from __future__ import annotations

import pytest

from headgate_api.positions import PositionError, read, write


def test_round_trip():
    assert read(write({1: 7, 0: 5}), {0: 5, 1: 7}) == {0: 5, 1: 7}
    assert read("1:7", {0: 9, 1: 9, 2: 9}) == {0: 0, 1: 7, 2: 0}


@pytest.mark.parametrize(
    "token", ["", "x", "0", "0:", "0:-1", "0:1,", "0:1,0:2", "2:1", "0:9223372036854775808", "0:1" * 999, "٠:1"]
)
def test_what_is_no_position_of_this_log_is_refused(token: str):
    with pytest.raises(PositionError):
        read(token, {0: 2**63, 1: 2**63})


@pytest.mark.parametrize("token", ["0:6", "0:5,1:1", "1:9223372036854775807"])
def test_a_position_behind_the_end_is_refused(token: str):
    with pytest.raises(PositionError, match="behind the end of this log"):
        read(token, {0: 5, 1: 0})
