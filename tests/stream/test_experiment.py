"""Does a reader of one value save what RabbitMQ published for its streams? Without waiting for the ten seconds."""

from __future__ import annotations

from pathlib import Path

from benchmarks.filtering import VALUES, expected, run


def test_a_reader_of_one_value_of_fifty_saves_what_the_model_says(tmp_path: Path) -> None:
    result = run(tmp_path, seed=1)
    assert 0.80 < expected() < 0.83
    assert len(result.saved) == VALUES
    assert result.missed == 0
    assert abs(result.mean - expected()) <= 0.03
    assert min(result.saved) > 0.5
