"""Headers of a stored event's record in Kafka beside those of the CloudEvents binding, which loses what they hold.

| header | what it holds |
|---|---|
| `headgate_broker` | identity of the broker that accepted the event |
| `headgate_data_kind` | how the value is to be read: a number of `DataKind` |
| `headgate_time_us` | the event's time in microseconds since 1970 UTC; absent without a time that has them |
| `headgate_extensions` | the extensions as a JSON object with their types; absent without extensions |
| `headgate_produced` | NUMBER:PRODUCER where the producer numbers its events |

They hold the text of the log's columns of those names (`event/arrow.py`), so that Spark reads the same from both.
"""

from __future__ import annotations

from typing import Final

BROKER: Final = "headgate_broker"
DATA_KIND: Final = "headgate_data_kind"
TIME_US: Final = "headgate_time_us"
EXTENSIONS: Final = "headgate_extensions"
PRODUCED: Final = "headgate_produced"
