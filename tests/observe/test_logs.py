"""Does every line say which process speaks, whatever context it is written in?"""

from __future__ import annotations

import subprocess
import sys

import msgspec


def test_every_line_is_a_fact_of_a_process() -> None:
    program = (
        "import contextvars, structlog; from headgate.observe import logs; logs.configure('front');"
        "log = structlog.get_logger(); log.info('one', count=1); contextvars.Context().run(log.warning, 'two')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
    first, second = map(msgspec.json.decode, done.stderr.splitlines())
    assert first.pop("timestamp")
    assert first == {"process": "front", "event": "one", "level": "info", "count": 1}
    assert (second["process"], second["event"], second["level"]) == ("front", "two", "warning")
