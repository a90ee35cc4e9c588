"""Time and chance, in one place: a simulation puts its own in place of the machine's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Clocks:
    """The dispatcher's clocks and its dice."""

    now: Callable[[], float] = time.monotonic  # monotonic seconds
    now_us: Callable[[], int] = lambda: time.time_ns() // 1_000  # microseconds since 1970 UTC; may jump
    chance: Callable[[], float] = random.random  # from 0 to 1, for the jitter of pauses


SYSTEM: Final = Clocks()
