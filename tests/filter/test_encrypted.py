"""Is the data of an event that is encrypted end to end an error to read, and do its attributes filter all the same?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate_api.event.model import DataKind, Event


@given(data=st.binary(min_size=1, max_size=64))
@pytest.mark.parametrize(
    ("cel", "kind"),
    [
        ("data.amount > 100", OutcomeKind.ERROR),
        ("has(data.amount)", OutcomeKind.ERROR),
        ("!(data.amount > 100)", OutcomeKind.ERROR),
        ('ce.type == "order" && data.amount > 100', OutcomeKind.ERROR),
        ('ce.type == "other" && data.amount > 100', OutcomeKind.FALSE),
        ('ce.type == "order"', OutcomeKind.TRUE),
        ('ce.tenant == "gold" || data.amount > 100', OutcomeKind.TRUE),
        ('ce.datacontenttype == "application/json" && data.amount > 100', OutcomeKind.FALSE),
    ],
)
def test_data_is_opaque_and_attributes_filter(data: bytes, cel: str, kind: OutcomeKind) -> None:
    event = Event(
        "1.0",
        "1",
        "/s",
        "order",
        datacontenttype="application/octet-stream",
        extensions={"tenant": "gold"},
        data_kind=DataKind.BINARY,
        data=data,
    )
    assert program(cel).evaluate(event).kind is kind
