"""kill -9 at any instant: every acknowledged record is there, in order, and the log goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from headgate.log.verify import inspect
from tests.log.support import NoSync, append, open_writer, read_all
from tests.support import REPOSITORY, times

KILLS = times(4, 20)
KILLS_MAX = 5 * KILLS
ENOUGH = 1_000
"""Records that survive before the test ends; a slow disk takes more kills until then."""

WRITE = """
import sys
from pathlib import Path
from headgate.log.directory import Partition
from headgate.log.writer import Encoded, PartitionWriter
from tests.log.support import SCHEMA, batch
writer = PartitionWriter(Partition(Path(sys.argv[1]), "stop"), SCHEMA, segment_bytes_max=30_000)
print("open", writer.next_offset, flush=True)
while True:
    first = writer.next_offset
    count = 1 + first * 7919 % 30
    writer.append(Encoded(batch(range(first, first + count), "x" * (first % 300)), ["v"] * count))
    sys.stdout.write(f"{first + count}\\n")
    sys.stdout.flush()
"""


@pytest.mark.crash
def test_every_acknowledged_record_survives(tmp_path):
    chance = random.Random(20)
    acknowledged = kills = 0
    while kills < KILLS or acknowledged <= ENOUGH:
        assert kills < KILLS_MAX, "the writers hardly wrote: the kills came too early to mean anything"
        kills += 1
        with subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        ) as writer:
            opened = writer.stdout.readline().split()
            assert opened[0] == "open"
            assert int(opened[1]) >= acknowledged
            time.sleep(chance.uniform(0, 0.15))
            writer.send_signal(signal.SIGKILL)
            answers = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        if answers:
            acknowledged = max(acknowledged, int(answers[-1]))
        stored = read_all(tmp_path)
        assert stored == list(range(len(stored)))
        assert len(stored) >= acknowledged
    report = inspect(tmp_path, bodies=True)
    assert report.problems == []
    with open_writer(tmp_path, files=NoSync()) as writer:
        assert writer.next_offset >= acknowledged
        end = append(writer, 5) + 5
    assert read_all(tmp_path) == list(range(end))
