from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.store.rows import RowSelection
from headgate_api.objects.kinds import Kind
from tests.objects.support import trigger


@pytest.mark.parametrize("which", [one for one in RowSelection if one is not RowSelection.ALL])
def test_no_question_reads_every_trigger(admission: Admission, tmp_path: Path, which: RowSelection) -> None:
    admission.create(Kind.TRIGGER, trigger())
    connection = sqlite3.connect(tmp_path / "control.db")
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {which}", (1,) * which.count("?"))]
    connection.close()
    assert len(plan) == 3
    assert all(step.startswith("SEARCH") for step in plan), plan
    # An index that knows only the kind holds all triggers.
    assert not any(step.endswith("(kind=?)") for step in plan), plan
