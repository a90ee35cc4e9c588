"""Functions in Python that cel-cpp calls: their values and errors arrive, and nothing of a call stays in memory."""

from __future__ import annotations

import sys
import threading

import pytest

from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.errors import EvaluationError
from headgate.filter.cel.evaluate import EventView, program
from headgate_api.event.json_format import decode_event

BODY = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","n":"1234","data":{"items":[%b]}}'
EVENT = decode_event(BODY % b",".join(b'{"sku":"s%d"}' % number for number in range(13)))


def evaluate(text: str, count: int = 1) -> int:
    """How many blocks of memory there are in the end."""
    found = program(text)
    for _ in range(count):
        found.evaluate(EVENT)
    return sys.getallocatedblocks()


@pytest.mark.parametrize(
    "text",
    [
        "cesql.int(ce.n) == 1234",
        "cesql.int(ce.id + 'x') == 1",  # an error
        "cesql.upper(cesql.upper(ce.type) + ce.type) == 'TT'",
        'json.values(data, ["items", "sku"]).exists(one, one == "s12")',
        'ip.within("10.0.0.1", "10.0.0.0/8")',
    ],
)
def test_nothing_of_a_call_is_kept(text: str) -> None:
    before = evaluate(text, 1_000)
    assert evaluate(text, 1_000) - before < 100


def test_values_and_errors_arrive() -> None:
    on = EventView(EVENT).activation
    assert compile_expression("cesql.upper(ce.type) + string(cesql.int(ce.n) + 1)").text(on) == "T1235"
    with pytest.raises(EvaluationError, match="1x"):
        compile_expression("cesql.int(ce.id + 'x')").value(on)


def test_each_thread_gives_back_what_it_was_given() -> None:
    text = "cesql.upper(ce.type + ce.n) == 'T1234'"
    evaluate(text)

    def work() -> None:
        for _ in range(200):
            assert program(text).evaluate(EVENT).kind.name == "TRUE"

    before = sys.getallocatedblocks()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getallocatedblocks() - before < 1_000
