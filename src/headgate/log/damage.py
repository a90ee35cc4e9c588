"""What readers do at damaged chunks: stop there, or skip them and log it.

Damaged bytes are never handed out, either way. The policy is the process's and no reader's own, so that no two readers
of one log disagree about what is in it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

import structlog

from headgate.limits import DAMAGES_KEPT
from headgate.log.errors import CorruptChunkError
from headgate.observe import metrics

OnCorrupt = Literal["stop", "skip"]
_log = structlog.get_logger(__name__)


class _Policy:
    def __init__(self) -> None:
        self.on_corrupt: OnCorrupt = "stop"
        self.reported: OrderedDict[tuple[str, int], None] = OrderedDict()


_policy: Final = _Policy()


def choose(on_corrupt: OnCorrupt) -> None:
    """Sets the policy of this process, before it reads."""
    _policy.on_corrupt = on_corrupt


def skips() -> bool:
    """Whether damage is passed over."""
    return _policy.on_corrupt == "skip"


def passed_over(error: CorruptChunkError, first_offset: int, next_offset: int) -> None:
    """Logs, once for each place, which records are skipped."""
    place = (str(error.path), error.byte)
    if place in _policy.reported:
        return
    _policy.reported[place] = None
    while len(_policy.reported) > DAMAGES_KEPT:
        _policy.reported.popitem(last=False)
    metrics.LOG_DAMAGES.inc()
    _log.error(
        "damaged chunk passed over",
        file=place[0],
        byte=error.byte,
        reason=error.reason,
        first_offset=first_offset,
        next_offset=next_offset,
    )
