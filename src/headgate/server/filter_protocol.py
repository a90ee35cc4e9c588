"""What a front and a process in which filters are tried say to each other, see `server/filter_workers.py`."""

from __future__ import annotations

import struct
from typing import Final

REQUEST_HEAD: Final = struct.Struct(">BI")
"""Before the body of a request to a process: the number in RUNS, the length of the body."""
ANSWER_HEAD: Final = struct.Struct(">HI")
"""Before the body of an answer: the status of HTTP, the length of the body."""
RUNS: Final = {"test": "POST", "explain": "POST", "convert": "POST", "dialects": "GET"}
"""What can be asked of a process, in the order of the numbers, and by which method of HTTP."""
