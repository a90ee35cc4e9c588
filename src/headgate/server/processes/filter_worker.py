"""The process in which people try filters, on its standard input and output; its first answer says that it has started.

It has no rights, no secrets and no files of the server. A filter that takes too long or too much memory ends with the
process, and delays nobody: `server/processes/filter_workers.py` starts another one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from headgate.filter.tools import trial
from headgate.objects.kinds.kube_status import failure, failure_of
from headgate_api.errors import HeadgateError
from headgate_api.event.json_text import allow_deep_json
from headgate_api.limits import FILTER_RUN_S_MAX, FILTER_WORKER_MEMORY_BYTES_MAX
from headgate_api.objects.bodies import decode_as

REQUEST_HEAD: Final = struct.Struct(">BI")
"""Before the body of a request: the place in RUNS, the length of the body."""
ANSWER_HEAD: Final = struct.Struct(">HI")
"""Before the body of an answer: the status of HTTP, the length of the body."""
RUNS: Final[Mapping[str, tuple[str, Callable[[bytes], msgspec.Struct]]]] = {
    "test": ("POST", lambda body: trial.try_filter(decode_as(body, trial.TrialRequest, "the request"))),
    "explain": ("POST", lambda body: trial.explain_filter(decode_as(body, trial.ExplainRequest, "the request"))),
    "convert": ("POST", lambda body: trial.convert_filter(decode_as(body, trial.FilterRequest, "the request"))),
    "dialects": ("GET", lambda _: trial.dialect_list()),
}
"""What can be asked, by which method of HTTP, and what answers it."""
_ANSWERS: Final = tuple(answers for _, answers in RUNS.values())
_NICENESS: Final = 10
"""Deliveries go first."""


def answer(run: int, body: bytes) -> tuple[int, bytes]:
    """The status and the body of one answer; never raises but for want of memory."""
    try:
        return 200, msgspec.json.encode(_ANSWERS[run](body))
    except HeadgateError as error:
        return error.http_status, msgspec.json.encode(failure_of(error))
    except Exception as error:  # noqa: BLE001 - a bug must not end the process, and with it the turns of others
        print(f"a trial of a filter failed: {error!r}", file=sys.stderr, flush=True)
        return 500, msgspec.json.encode(failure(500, "an internal error occurred"))


def main() -> None:
    """Answers until the standard input ends."""
    # What a package of dialects prints must not stand between answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    allow_deep_json()
    resource.setrlimit(resource.RLIMIT_AS, (FILTER_WORKER_MEMORY_BYTES_MAX, FILTER_WORKER_MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = sys.stdin.buffer
    status, body = 200, b""
    while True:
        answers.write(ANSWER_HEAD.pack(status, len(body)) + body)
        answers.flush()
        head = requests.read(REQUEST_HEAD.size)
        if len(head) < REQUEST_HEAD.size:
            return
        run, size = REQUEST_HEAD.unpack(head)
        _bound_time()
        status, body = answer(run, requests.read(size))


def _bound_time() -> None:
    """Ends the process where nobody is left to end it: its front has died, and a filter goes on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = int(used.ru_utime + used.ru_stime + 2 * FILTER_RUN_S_MAX)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))


if __name__ == "__main__":
    main()
