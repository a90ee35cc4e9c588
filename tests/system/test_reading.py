"""The log read through a real server: what producers sent is what readers get, before and while it comes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import Server
from tests.system.publishing import Publisher

pytestmark = pytest.mark.system


def read(server: Server, broker: str, query: str) -> tuple[list[str], dict[str, Any]]:
    """The ids of the events, and the last progress; a long read says how far it is in between."""
    with urllib.request.urlopen(f"{server.url}/{broker}/events?{query}", timeout=60) as answer:
        lines = [json.loads(line) for line in answer]
    return [line["id"] for line in lines if "id" in line], lines[-1]["progress"]


@pytest.fixture
def broker(server: Server) -> str:
    name = f"b{uuid.uuid4().hex[:8]}"
    spec = {"log": {"filterValue": "data.customer", "filterSizeBytes": 64, "compression": "lz4"}}
    server.create("brokers", "default", name, spec)
    server.wait_object_ready("brokers", "default", name)
    return f"default/{name}"


def test_a_broker_s_own_filter_value_size_and_compression(server: Server, broker: str) -> None:
    publisher = Publisher(server, broker)
    for number in range(30):
        assert publisher.publish(f"e{number}", "t", {"customer": f"c{number % 3}", "n": number}) == 202
    everything, _ = read(server, broker, "")
    assert sorted(everything) == sorted(f"e{number}" for number in range(30))
    mine, progress = read(server, broker, "filterValue=c1&filter=data.n%3E10")
    assert sorted(mine) == sorted(f"e{number}" for number in range(11, 30) if number % 3 == 1)
    assert progress["chunksSkipped"] > 0
    assert read(server, broker, f"from={progress['position']}")[0] == []
    assert publisher.publish("late", "t", {"customer": "c1"}) == 202
    assert read(server, broker, f"from={progress['position']}")[0] == ["late"]


def test_tail_follows_and_says_where_it_stopped(server: Server, broker: str) -> None:
    headgate = str(Path(sys.executable).with_name("headgate"))
    command = [headgate, "tail", "-b", broker, "--server", server.url, "--limit", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        publisher = Publisher(server, broker)
        number = 0
        while tail.poll() is None and number < 10_000:
            assert publisher.publish(f"e{number}", "t", {"customer": "ü", "n": number}) == 202
            number += 1
        out, err = tail.communicate(timeout=60)
    heads, *lines = out.splitlines()
    assert heads.split() == ["STORED", "TYPE", "SOURCE", "ID", "SUBJECT", "DATA"]
    assert len(lines) == 3
    assert '{"customer":"ü","n":' in lines[0]
    assert "read up to --from 0:" in err
    assert tail.returncode == 0
