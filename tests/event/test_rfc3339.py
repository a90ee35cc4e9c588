from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate_api.event.rfc3339 import micros

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:00:00-01:00", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T00:00:00.1Z", 100_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ("0000-01-01T00:00:00Z", -62_167_219_200_000_000),
        ("0000-02-29T00:00:00Z", -62_162_121_600_000_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
    ],
)
def test_instant(text, expected):
    assert micros(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2018-04-05",
        "2018-04-05T17:31Z",
        "2018-04-05T17:31:00",
        "2018-04-05 17:31:00Z",
        "2018-04-05T17:31:00+0200",
        "2018-04-05T17:31:00+02",
        "2018-04-05T17:31:00+24:00",
        "2018-04-05T17:31:00+02:60",
        "2018-04-05T17:31:00.Z",
        "2018-04-05T17:31:00,5Z",
        "2018-04-05T24:00:00Z",
        "2018-04-05T17:60:00Z",
        "2018-04-05T17:31:61Z",
        "2018-02-30T00:00:00Z",
        "2018-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2018-00-01T00:00:00Z",
        "2018-13-01T00:00:00Z",
        "2018-04-31T00:00:00Z",
        "2018-04-00T00:00:00Z",
        "2018-W14-4T00:00:00Z",
        "20180405T173100Z",
        "２０18-04-05T17:31:00Z",
        "2018-04-05T17:31:00Z\n",
        " 2018-04-05T17:31:00Z",
        "+2018-04-05T17:31:00Z",
    ],
)
def test_not_a_timestamp(text):
    assert micros(text) is None


@given(
    st.datetimes(timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))),
)
def test_agrees_with_datetime(moment):
    text = moment.isoformat(timespec="microseconds")
    assert micros(text) == (moment - EPOCH) // timedelta(microseconds=1)
