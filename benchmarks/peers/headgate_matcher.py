"""Headgate's matcher as a program of `benchmarks.peers.matchers`: the match of a chunk log in Spark, on one thread.

    python -m benchmarks.peers.headgate_matcher SCRATCH EVENTS RULES SAMPLE

The events stand in the log as the server stores them, so their attributes are columns; the JSON of their data is parsed
for each event. A job of Spark matches all events of the log, and its rows are counted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from benchmarks.matcher import BROKER, read, write_log
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import Verdict
from headgate.match.dataframe import match_events
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session
from headgate.match.table import build_table

EVENTS = 200_000
"""Of the log: a job takes a second or more of them, so its start hardly counts."""
HEAP_MIB = 4_096


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def main() -> None:
    """See `benchmarks.peers.matchers` for what is asked and said."""
    scratch, events, rules, sample = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    log = scratch / "log"
    write_log(events, log, EVENTS, partitions=1, sample=sample)
    texts = rules.read_text().splitlines()
    spark = start_session(jar=connector_jar(), threads=1, scratch=scratch / "spark", heap_mib=HEAP_MIB)
    started = time.perf_counter()
    table = build_table(spark, ((number, BROKER, compile_cel(text)) for number, text in enumerate(texts)))
    build_s = time.perf_counter() - started
    rows = match_events(read(spark, log, [1]), table).select("offset", "target", "verdict").toArrow().to_pylist()
    pairs = {(row["offset"], row["target"]) for row in rows if row["verdict"] == Verdict.MATCH}
    total = sum((offset + 1) * (target + 1) for offset, target in pairs)
    say({"build_s": round(build_s, 3), "matches": len(pairs), "sum": total})

    matched = match_events(read(spark, log, [0]), table)
    # Every column is asked for, so that none is optimised away.
    totals = (F.count("*"), F.sum("target"), F.max("offset"), F.min("partition"), F.sum("verdict"))
    for line in sys.stdin:
        started, asked, matches = time.perf_counter(), 0, 0
        while time.perf_counter() - started < float(line):
            matches += matched.agg(*totals).collect()[0][0]
            asked += EVENTS
        say({"events": asked, "matches": matches, "wall_s": time.perf_counter() - started})
    spark.stop()


if __name__ == "__main__":
    main()
