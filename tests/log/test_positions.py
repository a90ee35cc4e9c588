from __future__ import annotations

import pytest

from headgate.log.errors import PositionError
from headgate.log.positions import read, write


def test_round_trip():
    assert read(write({1: 7, 0: 5}), range(2)) == {0: 5, 1: 7}
    assert read("1:7", range(3)) == {0: 0, 1: 7, 2: 0}


@pytest.mark.parametrize(
    "token", ["", "x", "0", "0:", "0:-1", "0:1,", "0:1,0:2", "2:1", "0:9223372036854775808", "0:1" * 999, "٠:1"]
)
def test_what_is_no_position_of_this_log_is_refused(token: str):
    with pytest.raises(PositionError):
        read(token, range(2))
