"""Is JSON that ingress lets in read however deep the caller's own stack is?"""

from __future__ import annotations

import pytest

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import JSON_DEPTH_MAX


@pytest.mark.parametrize("leaf", [b'"a"', b"12345678901234567890123"])
@pytest.mark.parametrize("frames", [0, 400])
def test_data_as_deep_as_allowed_is_read(frames: int, leaf: bytes) -> None:
    if frames:
        return test_data_as_deep_as_allowed_is_read(frames - 1, leaf)
    levels = JSON_DEPTH_MAX - 1
    data = b'{"s":"x","v":' + b"[" * levels + leaf + b"]" * levels + b"}"
    event = Event(specversion="1.0", id="1", source="/a", type="t", data_kind=DataKind.JSON, data=data)
    assert program("data.s == 'x'").evaluate(event).kind is OutcomeKind.TRUE
