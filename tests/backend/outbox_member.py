"""A program that reads the outbox as a member of the group until it is killed, and prints what it takes and commits.

python -m tests.backend.outbox_member BOOTSTRAP PREFIX
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from headgate.backend.kafka.outbox_reader import OutboxMember
from headgate.backend.kafka.outbox_records import OutboxState
from headgate.backend.kafka.records import RecordError
from tests.backend.outbox_stream import commit, outbox_config

PAGES_A_COMMIT = 3


def say(**what: object) -> None:
    sys.stdout.write(json.dumps({"at": time.monotonic_ns(), **what}) + "\n")
    sys.stdout.flush()


class Owner:
    """Takes everything at once, and commits some of it later."""

    def taking(self, partitions: Sequence[int]) -> None:
        pass

    def assigned(self, partition: int, state: OutboxState) -> None:
        say(assigned=partition, runs=[run.run for run in state.takeover.runs])

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        say(revoked=list(partitions), lost=is_lost)

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None:
        say(passed_over=[partition, offset], error=error.message)

    def removed(self, partition: int, first: int, end: int) -> None:
        say(removed=[partition, first, end])


def main(bootstrap: str, prefix: str) -> None:
    reader = OutboxMember(outbox_config(bootstrap, prefix), Owner())
    pages = 0
    while True:
        for page in reader.read(0.2):
            partition = page.checkpoint.partition
            rows = [[each.source, each.offset, each.generation, t] for each in page.events for t, _ in each.targets]
            say(partition=partition, rows=rows)
            pages += 1
            if pages % PAGES_A_COMMIT == 0 and commit(reader, [page.checkpoint]):
                say(committed=partition)


if __name__ == "__main__":
    main(*sys.argv[1:])
