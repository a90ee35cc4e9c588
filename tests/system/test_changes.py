"""What becomes of events while filters change, thousands of times under load, and while each process is killed?

At every instant the filter that was Ready decides; a failure names its seed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import support
from tests.support import times
from tests.system.changing import VICTIMS, changed

pytestmark = [pytest.mark.system, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3 * 3_600)]

SEED = support.SEED or random.randrange(1, 1 << 31)
CHANGES = times(300, 300, 10_000)
KILLED_CHANGES = times(100, 100, 2_000)
KILLS = times(len(VICTIMS), len(VICTIMS), 100)
KINDS = {"added", "deleted", "widened", "narrowed", "replaced", "rare", "open"}


def test_changes_under_load_lose_nothing_and_bring_nothing_wrong(tmp_path: Path) -> None:
    outcome = changed(SEED, CHANGES, 0, tmp_path)
    assert outcome.lost[:5] == []
    assert outcome.wrong[:5] == []
    assert outcome.changes.keys() == KINDS
    assert outcome.promised > 10 * CHANGES, "the load was real"
    assert 2 <= outcome.queries < CHANGES / 5, "some changes need a new query, and most need none"


def test_changes_while_each_process_is_killed_lose_nothing_either(tmp_path: Path) -> None:
    outcome = changed(SEED, KILLED_CHANGES, KILLS, tmp_path)
    assert outcome.lost[:5] == []
    assert outcome.wrong[:5] == []
    assert outcome.kills.keys() == set(VICTIMS)
    assert outcome.promised > 10 * KILLED_CHANGES, "the load was real"
