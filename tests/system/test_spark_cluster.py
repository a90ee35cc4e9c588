"""A whole deployment on Kafka and a real Spark cluster: an executor and a worker die under load, and nothing is lost.

It is the demo (`make demo-cluster`, which kills one of every part) in a smaller size.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from examples.cluster.machines import Sizes
from examples.cluster.story import run
from rich.console import Console

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.system, pytest.mark.timeout(900)]

KILLS = ("executor", "worker")


def test_a_killed_executor_and_a_killed_worker_lose_nothing(tmp_path: Path) -> None:
    outcome = asyncio.run(run(tmp_path, Sizes(servers=1, brokers=1), KILLS, Console(highlight=False, width=120)))
    ledger = outcome.ledger
    assert [one.what for one in outcome.kills] == ["nothing", *KILLS]
    assert ledger.is_exact, (ledger.counts(), ledger.disordered)
    assert ledger.delivered > 50
