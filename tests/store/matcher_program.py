"""A matcher process with a Spark of its own, over the filters of one generation, until it is killed.

python -m tests.store.matcher_program BOOTSTRAP PREFIX SCRATCH GENERATION
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, task_slots
from headgate.store.kafka.matcher import KafkaMatcher, MatcherHooks
from headgate.store.kafka.spark_jars import spark_jars
from tests.store.matcher_world import SOURCES, Filters, world_config


def main(bootstrap: str, prefix: str, scratch: str, generation: str) -> None:
    spark = start_session(
        jar=connector_jar(),
        threads=task_slots(SOURCES),
        scratch=Path(scratch),
        heap_mib=512,
        more_jars=spark_jars(),
    )
    hooks = MatcherHooks(
        on_ready=lambda is_ready: print(f"ready {is_ready}", flush=True), on_note=lambda text: print(text, flush=True)
    )
    matcher = KafkaMatcher(spark, world_config(bootstrap, prefix), Filters(int(generation)), Path(scratch), hooks)
    matcher.run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
