"""A matcher process with a Spark of its own, over the filters of one generation, until it is killed.

python -m tests.backend.matcher_program BOOTSTRAP PREFIX SCRATCH GENERATION
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from headgate.backend.config import ClusterConfig, SparkConfig
from headgate.backend.kafka.matcher_leadership import MatcherHooks, serve_kafka
from tests.backend.matcher_world import Filters, world_config

OPTION = "spark.headgate.tried"


def say(text: str) -> None:
    print(text, flush=True)


def main(bootstrap: str, prefix: str, scratch: str, generation: str) -> None:
    spark = SparkConfig(master="local[5]", options={f"{OPTION}_file": f"{scratch}.secret"})

    def started() -> None:
        session = SparkSession.active()
        say(f"{session.sparkContext.master} {session.conf.get(OPTION)}")

    serve_kafka(
        config=ClusterConfig(kafka=world_config(bootstrap, prefix), spark=spark),
        filters=Filters(int(generation)),
        scratch=Path(scratch),
        stop=threading.Event(),
        hooks=MatcherHooks(on_note=say),
        on_started=started,
        heap_mib=512,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
