"""Writing the topic `objects`: the control process that leads."""

from __future__ import annotations

from typing import Final

from headgate.control.commit import NotLeaderError
from headgate.store.config import KafkaConfig
from headgate.store.kafka.fenced_writer import FencedWriter, Office
from headgate.store.kafka.object_rows import OBJECT_ROWS


def _fenced(hint: str) -> NotLeaderError:
    return NotLeaderError(
        "another control process has taken the lead while this one wrote objects",
        hint=hint or "send the change again, to the process that leads",
    )


_OFFICE: Final = Office(
    topic="objects",
    name="control",
    doing="objects cannot be written",
    unsure="read the object: the change may be stored all the same",
    fenced=_fenced,
    headers=(OBJECT_ROWS.header,),
)


class ObjectTopicWriter(FencedWriter):
    """The writer of the control process that leads; a newer one raises NotLeaderError in those before it."""

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(config, _OFFICE)
