"""The counters of triggers in a deployment on Kafka: the owners of their outbox partitions are asked for them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from urllib.parse import urlencode

import msgspec
import structlog
from starlette.requests import Request

from headgate.control.objects import Kind, ObjectKey
from headgate.errors import UnavailableError
from headgate.limits import STATS_ANSWER_S_MAX
from headgate.outbox.shards import dispatcher_of
from headgate.server.dispatcher_group import DispatcherQuestion, DispatcherReach
from headgate.server.kafka.stats_api import TARGETS
from headgate.server.proxy import sent_path
from headgate.server.target_stats import StatsReply, TargetStats, completed

_log = structlog.get_logger(__name__)


class AskedStats:
    """See `TriggerCounters`; of one request.

    Args:
        reach: The owners of partitions.
        target_id: The id of a trigger's target; None where there is none. May block.
        client: The request, whose client must have the right to it at every owner.
    """

    def __init__(self, reach: DispatcherReach, target_id: Callable[[ObjectKey], int | None], client: Request) -> None:
        self._reach = reach
        self._target_id = target_id
        self._client = client

    async def stats(self, names: frozenset[str]) -> dict[str, TargetStats]:
        """See `TriggerCounters`."""
        owned = await asyncio.to_thread(self._owned, names)
        found = await asyncio.gather(*(self._of_partition(number, targets) for number, targets in owned.items()))
        return {name: stats for one in found for name, stats in one.items()}

    def _owned(self, names: frozenset[str]) -> dict[int, dict[str, int]]:
        """The target ids of triggers, by the partition that has their matches."""
        owned: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for path in names:
            namespace, _, name = path.partition("/")
            target = self._target_id(ObjectKey(Kind.TRIGGER, namespace, name))
            if target is not None:  # else it has just been deleted
                owned[dispatcher_of(target, self._reach.count)][path] = target
        return owned

    async def _of_partition(self, number: int, targets: dict[str, int]) -> dict[str, TargetStats]:
        """The counters of these triggers; nothing where their owner does not answer."""
        query = urlencode({TARGETS: ",".join(map(str, targets.values()))}, safe=",")
        question = DispatcherQuestion.of(self._client, target=f"{sent_path(self._client.scope)}?{query}")
        try:
            async with asyncio.timeout(STATS_ANSWER_S_MAX):
                answer = await self._reach.ask(number, question)
        except (UnavailableError, TimeoutError) as error:
            _log.info("counters are left out", partition=number, why=str(error))
            return {}
        if not answer.is_good:
            _log.info("counters are left out", partition=number, why=str(answer.status))
            return {}
        return completed(targets, msgspec.json.decode(answer.body, type=StatsReply))
