"""Many documents validated in processes: the same answers, whatever happens to a process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.objects.api import validator_processes
from headgate.objects.api.validator import Validator
from headgate.objects.api.validator_processes import ValidatorProcesses
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.store.plans import filter_compiler
from headgate_api.errors import HeadgateError
from headgate_api.objects.bodies import FieldValidation
from headgate_api.objects.errors import Cause, InvalidObjectError
from headgate_api.objects.kinds import Kind
from tests.support import eventually

VALIDATOR = Validator(filter_compiler(), UrlPolicy())


def trigger(number: int, **spec: object) -> dict[str, object]:
    given: dict[str, object] = {
        "filter": {"cel": f'ce.type == "t{number}" && data.n > {number}'},
        "subscriber": {"uri": "http://localhost:9/"},
    }
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": f"t{number}"},
        "spec": given | spec,
    }


DOCUMENTS: list[object] = [trigger(number) for number in range(100)]
DOCUMENTS[3] = trigger(3, filter={"cel": "ce.typ =="})
DOCUMENTS[42] = trigger(42, subscriber={"uri": "ftp://localhost/"})
DOCUMENTS[77] = "no object"
DOCUMENTS[99] = trigger(99, filter={"cel": 'data.n > 5 && data.n < 3 && ce.type == "x"'})


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ValidatorProcesses]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = ValidatorProcesses(VALIDATOR)
    yield found
    found.close()


def each(validator: Validator | ValidatorProcesses) -> list[Any]:
    found = validator.each(Kind.TRIGGER, DOCUMENTS, "default", FieldValidation.STRICT)
    return [(type(one), vars(one)) if isinstance(one, HeadgateError) else one for one in found]


def workers(processes: ValidatorProcesses) -> list[int]:
    """The process ids, when all are ready."""
    eventually(lambda: processes._ready() is not None, seconds=30)
    pool = processes._pool
    assert pool is not None
    return list(pool._processes)


def test_processes_say_what_one_thread_says_also_when_one_dies(processes: ValidatorProcesses) -> None:
    expected = each(VALIDATOR)
    assert [place for place, one in enumerate(expected) if isinstance(one[0], type)] == [3, 42, 77]
    assert each(processes) == expected  # while they start
    there = workers(processes)
    assert len(there) == 2
    assert each(processes) == expected
    assert workers(processes) == there  # they did it
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    assert each(processes) == expected


def test_few_documents_start_no_process(processes: ValidatorProcesses) -> None:
    processes.each(Kind.TRIGGER, DOCUMENTS[:10], "default", FieldValidation.STRICT)
    assert processes._pool is None


def test_processes_that_have_nothing_to_do_end(processes: ValidatorProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validator_processes, "VALIDATOR_PROCESSES_IDLE_S", 0.3)
    there = workers(processes)
    eventually(lambda: processes._pool is None and not any(map(is_alive, there)), seconds=10)
    assert each(processes) == each(VALIDATOR)


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        textwrap.dedent("""
            import os
            os.sched_getaffinity = lambda _: {0, 1}
            from tests.objects.test_validator_processes import VALIDATOR, ValidatorProcesses, workers
            if __name__ == "__main__":
                print(*workers(ValidatorProcesses(VALIDATOR)), flush=True)
                os.kill(os.getpid(), 9)
        """)
    )
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, program], env=paths, stdout=subprocess.PIPE, text=True, check=False)
    there = [int(pid) for pid in done.stdout.split()]
    assert done.returncode == -signal.SIGKILL
    assert len(there) == 2
    eventually(lambda: not any(map(is_alive, there)), seconds=10)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_errors_cross_processes_as_they_are() -> None:
    error = InvalidObjectError(
        (Cause("spec.x", "FieldValueInvalid", "is wrong"),), kind="Trigger", name="gold", hint="mend it"
    )
    same = pickle.loads(pickle.dumps(error))
    assert (type(same), str(same), vars(same)) == (InvalidObjectError, str(error), vars(error))
