import msgspec
import pyarrow as pa
import pytest

from headgate.event.arrow import (
    EVENT_SCHEMA,
    StoredEvent,
    columns_to_batch,
    from_batch,
    from_batch_all,
    time_range_us,
    to_batch,
)
from headgate_api.event import rfc3339
from headgate_api.event.model import DataKind, Event, EventColumns

PLAIN = Event("1.0", "1", "/s", "t")
FULL = Event(
    "0.3",
    "2",
    "/s",
    "t",
    "subject",
    "2018-04-05T17:31:00.123456789+02:00",
    "application/json",
    "schema",
    {"flag": True, "num": -5, "text": "€\U0001f600"},
    DataKind.JSON,
    b'{"a": 1.0e2}',
)


def test_columns_are_those_of_the_log_format():
    assert EVENT_SCHEMA.names == [
        "broker", "specversion", "id", "source", "type", "subject", "time", "time_us", "datacontenttype", "dataschema",
        "extensions", "data_kind", "data", "produced",
    ]  # fmt: skip
    assert {field.name for field in EVENT_SCHEMA if not field.nullable} == {
        "broker", "specversion", "id", "source", "type", "data_kind",
    }  # fmt: skip
    assert EVENT_SCHEMA.field("time_us").type == pa.int64()
    assert EVENT_SCHEMA.field("data_kind").type == pa.int8()
    assert EVENT_SCHEMA.field("data").type == pa.binary()
    assert EVENT_SCHEMA.field("produced").type == pa.utf8()


def test_a_producers_numbers_are_stored_beside_the_event_and_are_no_part_of_it():
    stored = [StoredEvent("ns/b", PLAIN), StoredEvent("ns/b", FULL)]
    batch = to_batch(stored, [None, "7:p:1"])
    assert batch.column("produced").to_pylist() == [None, "7:p:1"]
    assert from_batch_all(batch) == stored
    assert from_batch(batch, 1) == stored[1]
    assert to_batch(stored).column("produced").null_count == 2


@pytest.mark.parametrize("entries", [[PLAIN], [FULL], [PLAIN, FULL], [FULL, PLAIN, FULL]])
def test_round_trip(entries):
    stored = [StoredEvent(f"ns/b{index}", event) for index, event in enumerate(entries)]
    batch = to_batch(stored)
    batch.validate(full=True)
    assert batch.schema == EVENT_SCHEMA
    assert from_batch_all(batch) == stored
    assert [from_batch(batch, row) for row in range(batch.num_rows)] == stored


def test_extensions_keep_their_types():
    column = to_batch([StoredEvent("ns/b", PLAIN), StoredEvent("ns/b", FULL)]).column("extensions")
    assert column.to_pylist() == [None, '{"flag":true,"num":-5,"text":"€\U0001f600"}']
    assert type(from_batch(to_batch([StoredEvent("ns/b", FULL)]), 0).event.extensions["flag"]) is bool


@pytest.mark.parametrize(
    "text",
    [
        "2018-04-05T17:31:00Z",
        "2018-04-05T17:31:00.123456789Z",
        "2018-04-05t17:31:00z",
        "2018-04-05T17:31:00-11:30",
        "2018-04-05T17:31:00-00:00",
        "0000-01-01T00:00:00Z",
        "0000-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59.999999-23:59",
        "2016-12-31T23:59:60Z",
    ],
)
def test_time_us_is_the_instant_whoever_parsed_it(text):
    for others in ([], ["2016-12-31T23:59:60Z"]):  # a rare form sends the whole column the slow way
        times = [text, *others, None]
        batch = to_batch([StoredEvent("ns/b", Event("1.0", "1", "/s", "t", time=time)) for time in times])
        assert batch.column("time_us").to_pylist() == [time and rfc3339.micros(time) for time in times]


def test_time_range():
    def batch(*times):
        return to_batch([StoredEvent("ns/b", Event("1.0", "1", "/s", "t", time=time)) for time in times])

    assert time_range_us(batch(None, None)) is None
    assert time_range_us(batch("1970-01-01T00:00:01Z", None, "1970-01-01T00:00:00Z")) == (0, 1_000_000)


def test_columns_of_events_become_the_same_batch():
    events = [FULL, PLAIN, FULL]
    columns = EventColumns(list(zip(*map(msgspec.structs.astuple, events), strict=True)), frozenset(FULL.extensions))
    assert list(columns) == columns == events
    assert [columns[row] for row in range(3)] == events
    assert columns[1:] == events[1:]
    assert list(columns.column("type")) == [event.type for event in events]
    assert columns_to_batch([("ns/b", columns)]) == to_batch([StoredEvent("ns/b", event) for event in events])
    both = columns_to_batch([("ns/b", columns), ("ns/c", columns)])
    assert from_batch_all(both) == [StoredEvent(broker, event) for broker in ("ns/b", "ns/c") for event in events]
