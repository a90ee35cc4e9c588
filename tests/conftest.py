"""The examples that properties try: the same ones at every run, so that a change is judged by what it changed.

`make nightly` tries new ones (HEADGATE_EXPLORE=1). No example has a deadline: how long something takes is for
benchmarks, not for tests on a busy machine.
"""

import os

from hypothesis import HealthCheck, settings

from headgate.event.json_text import allow_deep_json

_EXPLORES = bool(os.environ.get("HEADGATE_EXPLORE"))
settings.register_profile(
    "headgate", deadline=None, derandomize=not _EXPLORES, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headgate")

allow_deep_json()  # as at the start of every process of Headgate
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else its notes of closed connections mix with pytest's lines
