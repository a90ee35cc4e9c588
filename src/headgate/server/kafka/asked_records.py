"""What became of an event in a deployment on Kafka: the owners of the outbox's partitions are asked for it."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from headgate.errors import UnavailableError
from headgate.inspect.find import FoundEvent, InspectedLog
from headgate.inspect.records import EventRecords, KnownEvent, asked_for
from headgate.log import positions
from headgate.server.dispatcher_group import DispatcherAnswer, DispatcherQuestion, DispatcherReach
from headgate.server.kafka.records_api import PLACE
from headgate.server.proxy import sent_path

_decode: Final = msgspec.json.Decoder(EventRecords).decode


class OwnerRefusedError(UnavailableError):
    """The owner of a partition cannot say what became of an event."""

    code = "owner-refused"


class AskedRecords:
    """See `headgate.inspect.records.Records`; of one request, made on the event loop, used in other threads.

    Args:
        log: The topic `events`.
        reach: The owners of partitions.
        client: The request, whose client must have the right to it at every owner.
    """

    log: InspectedLog

    def __init__(self, log: InspectedLog, reach: DispatcherReach, client: Request) -> None:
        self.log = log
        self._reach = reach
        self._client = client
        self._loop = asyncio.get_running_loop()

    def of_event(self, found: FoundEvent, target: int | None = None) -> KnownEvent:
        """See `Records`.

        Raises:
            UnavailableError: An owner does not answer, or cannot say it.
        """
        return asyncio.run_coroutine_threadsafe(self._ask(found, target), self._loop).result()

    async def _ask(self, found: FoundEvent, target: int | None) -> KnownEvent:
        place = urlencode({PLACE: positions.write({found.partition: found.offset})})
        question = DispatcherQuestion.of(self._client, target=f"{sent_path(self._client.scope)}?{place}")
        numbers = asked_for(target, self._reach.count)
        answers = await asyncio.gather(*(self._reach.ask(number, question) for number in numbers))
        records = {number: _records(number, answer) for number, answer in zip(numbers, answers, strict=True)}
        return KnownEvent(records, self._reach.count)


def _records(number: int, answer: DispatcherAnswer) -> EventRecords:
    if answer.is_good:
        return _decode(answer.body)
    status: Any = answer.content
    raise OwnerRefusedError(f"partition {number} of the outbox: {status.get('message') or answer.status}")
