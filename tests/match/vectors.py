"""The partitions of tests/vectors/log, which the log's author wrote, as rows of the data source."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "log"
EXPECTED: dict[str, Any] = json.loads((VECTORS / "expected.json").read_text(encoding="utf-8"))


def chunks(partition: int) -> list[dict[str, Any]]:
    segments = EXPECTED["partitions"][str(partition)]["segments"]
    return [chunk for segment in segments for chunk in segment["chunks"]]


def rows_of(chunk: dict[str, Any], partition: int) -> list[dict[str, Any]]:
    """The chunk's records as the source must give them."""
    rows = []
    for index, record in enumerate(chunk["records"]):
        data = record["data"]
        place = {
            "partition": partition,
            "offset": chunk["first_offset"] + index,
            "append_time_us": chunk["append_time_us"],
        }
        row = record | {"data": None if data is None else bytearray(base64.b64decode(data))} | place
        del row["produced"]  # no part of the event
        rows.append(row)
    return rows


def rows(partition: int) -> list[dict[str, Any]]:
    return [row for chunk in chunks(partition) for row in rows_of(chunk, partition)]
