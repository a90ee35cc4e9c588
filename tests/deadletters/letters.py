"""Dead letters as tests make and read them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headgate.deadletters.store import DeadLetterReader, StoredDeadLetter
from headgate.storage.files import DispatcherDirectory
from tests.delivery.harness import event


def letter(position: int = 0, **changes: object) -> StoredDeadLetter:
    plain = StoredDeadLetter(
        target=1,
        position=position,
        partition=0,
        offset=position,
        trigger="default/t1",
        broker="default/default",
        event=event(position),
        stored_us=1,
        died_us=1,
        reason="400",
        destination="http://x/",
        code=400,
        data=b"no",
        attempts=1,
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def page(reader: DeadLetterReader, where: str = "TRUE", limit: int = 10_000) -> list[StoredDeadLetter]:
    return [stored for one in reader.summaries(where, (), after=0, limit=limit) if (stored := reader.get(one.id))]


def letters(data: Path) -> list[StoredDeadLetter]:
    with DeadLetterReader.open(DispatcherDirectory.of(data, 0).dead_letters) as stored:
        return page(stored)
