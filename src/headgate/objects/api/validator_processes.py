"""Documents validated by all cores: in processes, as what validates them is Python, which has one core in a process.

The processes start when many documents come, and end when none come any more: an idle server has none.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Final, TypeAlias

import structlog

from headgate.objects.api.validator import Validated, Validator
from headgate.objects.kinds.decode import Decoded
from headgate.objects.store.plans import PlanDecoder, encode_plan
from headgate_api.errors import HeadgateError
from headgate_api.limits import (
    GC_YOUNG_OBJECTS,
    VALIDATOR_PROCESSES_DOCUMENTS_MIN,
    VALIDATOR_PROCESSES_IDLE_S,
    VALIDATOR_PROCESSES_MAX,
)
from headgate_api.objects.bodies import FieldValidation
from headgate_api.objects.kinds import Kind

_NICE: Final = 5
"""Where there is more work than cores, what producers and subscribers wait for comes first."""
_log = structlog.get_logger(__name__)


class ValidatorProcesses:
    """Validates several documents at once; may be called by several threads, which it blocks.

    Where a document ends its process, this one validates it, as it does where there is one core.
    """

    def __init__(self, validator: Validator, most: int = VALIDATOR_PROCESSES_MAX) -> None:
        self._validator = validator
        self._count = min(len(os.sched_getaffinity(0)), most)
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._starts: Sequence[Future[None]] = ()
        self._used_s = 0.0

    def each(
        self, kind: Kind, documents: Sequence[object], namespace: str | None, validation: FieldValidation
    ) -> list[Validated | HeadgateError]:
        """Of each document what `Validator.validate` gives, or its error."""
        many = len(documents) >= VALIDATOR_PROCESSES_DOCUMENTS_MIN and self._count > 1
        pool = self._ready() if many else None
        if pool is not None:
            try:
                share = -(-len(documents) // self._count)
                parts = [
                    pool.submit(_validated, kind, documents[first : first + share], namespace, validation)
                    for first in range(0, len(documents), share)
                ]
                decoder = PlanDecoder()
                return [_received(one, decoder) for part in parts for one in part.result()]
            except (RuntimeError, CancelledError) as error:  # one has died, or another thread has ended them
                _log.warning("processes that validate objects have ended", error=repr(error))
                self._end(pool)
        return self._validator.each(kind, documents, namespace, validation)

    def close(self) -> None:
        """Ends the processes."""
        if (pool := self._pool) is not None:
            self._end(pool)

    def _ready(self) -> ProcessPoolExecutor | None:
        """The processes; None while they start, which nobody waits for."""
        with self._lock:
            self._used_s = time.monotonic()
            if self._pool is None:
                context = multiprocessing.get_context("spawn")  # a fork would have the locks of other threads
                self._pool = ProcessPoolExecutor(self._count, context, _begin, (self._validator,))
                self._starts = [self._pool.submit(_nothing) for _ in range(self._count)]
                threading.Thread(target=self._end_when_idle, args=[self._pool], daemon=True).start()
            return self._pool if all(one.done() for one in self._starts) else None

    def _end_when_idle(self, pool: ProcessPoolExecutor) -> None:
        while (left_s := self._used_s + VALIDATOR_PROCESSES_IDLE_S - time.monotonic()) > 0:
            time.sleep(left_s)
        self._end(pool)

    def _end(self, pool: ProcessPoolExecutor) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        pool.shutdown(wait=False, cancel_futures=True)


# --- in a process ---------------------------------------------------------------------------------

_validator: Validator


def _begin(validator: Validator) -> None:
    global _validator
    _validator = validator
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this, also when a person has interrupted both
    os.nice(_NICE)
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed has told nobody to end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(0)


def _nothing() -> None:
    pass


def _validated(
    kind: Kind, documents: Sequence[object], namespace: str | None, validation: FieldValidation
) -> list[_Sent | HeadgateError]:
    return [_sent(one) for one in _validator.each(kind, documents, namespace, validation)]


# --- between processes ----------------------------------------------------------------------------

_Sent: TypeAlias = "tuple[Decoded, bytes | None]"
"""`Validated`; its plan, below no ceiling yet, is as it is stored: a pickle takes several times as long to read."""


def _sent(one: Validated | HeadgateError) -> _Sent | HeadgateError:
    if isinstance(one, HeadgateError):
        return one
    decoded, plan = one
    return decoded, encode_plan(plan) if plan is not None else None


def _received(one: _Sent | HeadgateError, decoder: PlanDecoder) -> Validated | HeadgateError:
    if isinstance(one, HeadgateError):
        return one
    decoded, plan = one
    return decoded, decoder.decode(plan) if plan is not None else None
