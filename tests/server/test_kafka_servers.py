"""Servers of a deployment on Kafka as real processes: two with control and front, one with fronts alone."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from clusters.kafka import Kafka

from headgate.backend.config import ClusterConfig, KafkaConfig
from headgate.backend.kafka.topics import Admin
from headgate.event.arrow import from_batch_all
from headgate.ingress.partitions import partition_of_key
from headgate.testing.server import START_S_MAX, ApiError, Server, object_of, parts_of
from headgate_api.limits import KAFKA_APPEND_S_MAX
from headgate_client.aio import AsyncClient
from headgate_client.producer import AsyncProducer
from headgate_client.values import new_event
from tests.backend.contract import PARTITIONS
from tests.backend.stores import KafkaReader, kafka_config
from tests.support import eventually, executable

pytestmark = [pytest.mark.kafka, pytest.mark.system, pytest.mark.slow]
WAIT_S_MAX = 120.0
LEAD_S_MAX = 10.0
"""Silence of writes after the leader's death on a quiet machine."""
TRIGGER = {"broker": "default", "subscriber": {"uri": "http://127.0.0.1:9/"}}
DOWN = (OSError, http.client.HTTPException)
_numbers = itertools.count()
T = TypeVar("T")


@dataclass(frozen=True)
class Deployment:
    """Servers on one Kafka: `one` and `two` have control and front, `two` a reader, `fronts` two fronts alone."""

    kafka: Kafka
    config: KafkaConfig
    one: Server
    two: Server
    fronts: Server

    @property
    def controls(self) -> tuple[Server, Server]:
        return self.one, self.two

    def leader(self) -> tuple[Server, Server]:
        """The server that leads the objects, and the other one."""
        found = eventually(lambda: [one for one in self.controls if "control ok: leads" in verbose(one)])
        return found[0], self.two if found[0] is self.one else self.one


def verbose(server: Server) -> str:
    try:
        with urllib.request.urlopen(f"{server.url}/readyz?verbose", timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except DOWN:
        return ""


@pytest.fixture(scope="module")
def deployment(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    config = kafka_config(kafka.bootstrap, f"s{time.monotonic_ns()}.")
    Admin(config).create_missing()
    file = folder / "headgate.yaml"
    file.write_text(ClusterConfig(kafka=config).model_dump_json())  # JSON is YAML

    def server(name: str, *arguments: str) -> Server:
        given = ("--config", str(file), *arguments)
        return Server(folder / name, arguments=given, log=folder / f"{name}.log")

    both = ("--role", "control,front", "--eventtype-auto-create")
    read = ("--role", "control,front,reader", "--eventtype-auto-create")
    running = Deployment(
        kafka, config, server("one", *both), server("two", *read), server("fronts", "--role", "front", "--fronts", "2")
    )
    servers = (running.one, running.two, running.fronts)
    try:
        for one in servers:
            one.start(wait=False)
        for one in servers:
            one.wait_ready()
        yield running
        assert [one.stop() for one in servers] == [0, 0, 0]
    finally:
        for one in servers:
            one.kill()
        for log in folder.glob("*.log"):
            print(f"--- {log.name}\n{log.read_text()[-6000:]}")


def post(server: Server, name: str, body: bytes = b"{}", kind: str = "application/json", **more: str) -> int:
    """Publishes an event; returns the status."""
    headers = {"ce-id": name, "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"} if "batch" not in kind else {}
    headers |= {f"ce-{key}": value for key, value in more.items()}
    request = urllib.request.Request(f"{server.url}/default/default", body, {"content-type": kind, **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)


def stored(config: KafkaConfig) -> dict[int, list[str]]:
    """Ids in the topic by partition, in order."""
    found: dict[int, list[str]] = {}
    for number in range(PARTITIONS):
        with closing(KafkaReader(config, number)) as reader:
            found[number] = []
            while (page := reader.read()) is not None:
                found[number] += [one.event.id for one in from_batch_all(page.batch)]
    return found


def ids(found: dict[int, list[str]]) -> list[str]:
    """The ids of all partitions."""
    return [name for names in found.values() for name in names]


def written(server: Server, work: Callable[[], Any]) -> Any:
    """What a write answers, once somebody leads."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            return work()
        except ApiError as error:
            if error.status != 503:
                raise
        except DOWN:
            pass
        assert time.monotonic() < deadline, verbose(server)
        time.sleep(0.05)


def create(server: Server) -> tuple[str, str]:
    """Creates a trigger; its name and resourceVersion."""
    name = f"t{next(_numbers)}"
    made = written(server, lambda: server.create("triggers", "default", name, TRIGGER))
    return name, made["metadata"]["resourceVersion"]


def test_events_are_in_the_topic_when_they_are_accepted(deployment: Deployment) -> None:
    servers, config = (deployment.one, deployment.fronts), deployment.config
    eventually(lambda: [post(one, "first") for one in servers] == [202, 202])
    keyed: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    for number in range(12):
        for key, names in keyed.items():
            names.append(f"{key}-{number}")
            assert post(servers[number % 2], names[-1], partitionkey=key) == 202
    event = {"specversion": "1.0", "source": "/s", "type": "t"}
    batch = json.dumps([{**event, "id": f"batch-{number}"} for number in range(20)]).encode()
    assert post(deployment.fronts, "", batch, "application/cloudevents-batch+json") == 202
    torn = json.dumps([{**event, "id": "torn-0"}, {"id": "torn-1"}]).encode()
    assert post(deployment.fronts, "", torn, "application/cloudevents-batch+json") == 400
    assert post(deployment.one, "malformed", specversion="9") == 400
    found = eventually(lambda: (now := stored(config)) and ids(now).count("batch-19") and now)
    for key, names in keyed.items():
        place = found[partition_of_key(key, PARTITIONS)]
        assert [name for name in place if name.startswith(f"{key}-")] == names
    whole = [[name for name in names if name.startswith("batch-")] for names in found.values()]
    assert sorted(map(len, whole)) == [0, 20]
    assert not {"torn-0", "torn-1", "malformed"} & set(ids(found))


def read(server: Server, query: str, count: int, accept: str = "application/x-ndjson") -> list[str]:
    """Ids of the first events of an answer."""
    request = urllib.request.Request(f"{server.url}/default/default/events?{query}", headers={"accept": accept})
    found: list[str] = []
    with urllib.request.urlopen(request, timeout=WAIT_S_MAX) as lines:
        for line in lines:
            event = json.loads(line)
            if "id" in event:
                found.append(event["id"])
            if len(found) == count:
                return found
    return found


def test_a_server_with_the_role_reader_answers_from_the_topic(deployment: Deployment) -> None:
    """What any server accepted, by filter, from a position, and while it comes."""
    eventually(
        lambda: [post(one, f"read-{n}") for n, one in enumerate((deployment.one, deployment.fronts))] == [202, 202]
    )
    server = deployment.two
    query = "filter=" + urllib.parse.quote('ce.id.startsWith("read-")')
    eventually(lambda: set(read(server, query, 9)) == {"read-0", "read-1"})
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(read, server, f"{query}&from=earliest&follow=true", 3)
        assert post(deployment.fronts, "read-2") == 202
        assert set(first.result(WAIT_S_MAX)) == {"read-0", "read-1", "read-2"}

    async def over_grpc() -> list[str]:
        async with (
            AsyncClient(server.grpc) as client,
            client.read("default", filter='ce.id == "read-2"', follow=False) as reading,
        ):
            return [one.event.id async for one in reading]

    assert asyncio.run(over_grpc()) == ["read-2"]


def test_every_control_process_knows_what_flows(deployment: Deployment) -> None:
    """Whichever server took the events. The one that leads makes their EventTypes."""
    servers = (deployment.one, deployment.two, deployment.fronts)
    eventually(lambda: [post(one, f"flow-{n}", type="flow") for n, one in enumerate(servers)] == [202] * 3)
    eventing = "/apis/eventing.knative.dev"

    def flows(server: Server) -> list[bool]:
        found = server.call("GET", f"{server.url}{eventing}/v1/namespaces/default/brokers/default/catalogue")
        return [one["count"] >= len(servers) for one in found["items"] if one["type"] == "flow"]

    for server in servers:
        eventually(lambda server=server: flows(server) == [True])
        url = f"{server.url}{eventing}/v1beta2/namespaces/default/eventtypes"
        eventually(
            lambda server=server, url=url: "flow" in [one["spec"]["type"] for one in server.call("GET", url)["items"]]
        )


def test_what_is_not_on_kafka_says_so(deployment: Deployment) -> None:
    server = deployment.fronts
    own = "/apis/headgate.dev/v1/namespaces/default"
    # There is no reader and no dispatcher. A server knows whether it has a reader; Kafka's group knows all dispatchers.
    for path, status in (("/default/default/events", 501), (f"{own}/deadletters", 503), (f"{own}/replays", 503)):
        with pytest.raises(ApiError) as caught:
            server.call("GET", f"{server.url}{path}")
        assert caught.value.status == status, path

    async def over_grpc() -> None:
        async with AsyncClient(server.grpc) as client:
            await client.publish("default", [new_event(id="over-grpc", source="/s", type="t")])

    asyncio.run(over_grpc())
    assert "over-grpc" in ids(stored(deployment.config))
    with pytest.raises(ApiError, match=r"404.*in Kafka, which knows no chunks"):
        server.call("GET", f"{server.url}/apis/headgate.dev/v1/chunks")


def test_kubectl_writes_and_reads_at_any_server(deployment: Deployment, tmp_path: Path) -> None:
    manifest = json.dumps(object_of("triggers", "default", "by-kubectl", TRIGGER))
    versions = set()
    for server in (deployment.leader()[1], deployment.leader()[0], deployment.fronts):
        command = [executable("kubectl"), "--server", server.url, "--cache-dir", str(tmp_path / "cache")]
        for arguments in (("apply", "-f", "-"), ("get", "trigger", "by-kubectl", "-o", "jsonpath={.metadata.uid}")):
            done = subprocess.run(
                [*command, *arguments],
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": "/dev/null"},
                input=manifest,
                capture_output=True,
                text=True,
                timeout=WAIT_S_MAX,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        versions.add(done.stdout)
    assert len(versions) == 1, "one object, whoever is asked"


def test_every_control_process_tells_the_same(deployment: Deployment) -> None:
    leader, other = deployment.leader()
    since = leader.call("GET", leader.objects_url("triggers", "default"))["metadata"]["resourceVersion"]
    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(watched, server, since, 6) for server in (leader, other)]
        for server in (other, leader, deployment.fronts):
            name, version = create(server)
            # Who has written reads it at once, wherever that was.
            found = server.get("triggers", "default", name)
            assert int(found["metadata"]["resourceVersion"]) >= int(version)
            server.delete("triggers", "default", name)
        changes = [one.result(WAIT_S_MAX) for one in told]
    assert changes[0] == changes[1]
    name, _ = create(other)
    stale = eventually(lambda: other.get("triggers", "default", name))
    stale["metadata"]["resourceVersion"] = since
    for server in (leader, other, deployment.fronts):
        with pytest.raises(ApiError) as caught:
            server.call("PUT", f"{server.objects_url('triggers', 'default')}/{name}", stale)
        assert caught.value.status == 409
    fresh = f"b{next(_numbers)}"
    other.create("brokers", "default", fresh, {})
    request = urllib.request.Request(
        f"{other.url}/default/{fresh}", b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
    )
    request.add_header("content-type", "application/cloudevents+json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202, "the fronts of a server know a broker before its write is answered"


def watched(server: Server, since: str, count: int) -> list[tuple[str, str, str]]:
    """The next creations and deletions behind a version: type, name and version."""
    url = f"{server.objects_url('triggers', 'default')}?watch=1&resourceVersion={since}"
    found: list[tuple[str, str, str]] = []
    with urllib.request.urlopen(url, timeout=WAIT_S_MAX) as lines:
        for line in lines:
            change = json.loads(line)
            if change["type"] in ("ADDED", "DELETED"):
                meta = change["object"]["metadata"]
                found.append((change["type"], meta["name"], meta["resourceVersion"]))
                if len(found) == count:
                    break
    return found


@pytest.mark.slow
def test_another_one_leads_when_the_leader_is_killed(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    leader, other = deployment.leader()
    acknowledged = [create(server)[0] for server in (leader, other, leader)]
    leader.kill()
    killed_at = time.monotonic()
    acknowledged.append(create(other)[0])
    silent_s = time.monotonic() - killed_at
    acknowledged.append(create(deployment.fronts)[0])
    (leader.data / "control.db").unlink()
    for suffix in ("-wal", "-shm"):
        Path(f"{leader.data / 'control.db'}{suffix}").unlink(missing_ok=True)
    leader.start()
    acknowledged.append(create(leader)[0])
    for server in (leader, other):
        names = {one["metadata"]["name"] for one in server.list("triggers", "default")}
        assert names >= set(acknowledged)
    assert deployment.leader()[0] is other, "who joins takes no lead from who has it"
    with capsys.disabled():
        print(f" [writes were silent for {silent_s:.1f} s]", end="")
    assert silent_s < 3 * LEAD_S_MAX


@pytest.mark.slow  # the election alone is in tests/backend/test_election.py
def test_a_leader_that_stood_still_leads_no_more(deployment: Deployment) -> None:
    leader, other = deployment.leader()
    control = parts_of(leader.pid)["control"]
    os.kill(control, signal.SIGSTOP)
    try:
        names = [create(other)[0]]
    finally:
        os.kill(control, signal.SIGCONT)
    names.append(create(leader)[0])
    names.append(create(other)[0])
    eventually(lambda: f"control ok: follows {other.url}" in verbose(leader))
    assert "control ok: leads" in verbose(other)
    for server in (leader, other):  # the last one was written at the other server: who follows reads it soon after
        eventually(
            lambda server=server: {one["metadata"]["name"] for one in server.list("triggers", "default")} >= {*names}
        )


def test_a_killed_front_loses_nothing_that_it_has_accepted(deployment: Deployment) -> None:
    server, stop = deployment.fronts, threading.Event()
    accepted: list[str] = []

    def load(worker: int) -> None:
        event = {"specversion": "1.0", "source": "/s", "type": "t"}
        for number in itertools.count():
            if stop.is_set():
                return
            names = [f"load-{worker}-{number}-{one}" for one in range(1 + 3 * (worker % 2))]
            try:
                if len(names) == 1:
                    status = post(server, names[0])
                else:
                    body = json.dumps([{**event, "id": name} for name in names]).encode()
                    status = post(server, "", body, "application/cloudevents-batch+json")
            except DOWN:
                continue
            if status == 202:
                accepted.extend(names)

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(load, worker) for worker in range(4)]
        try:
            for part in ("front-0", "front-1"):
                before = len(accepted)
                eventually(lambda before=before: len(accepted) > before + 50)
                os.kill(parts_of(server.pid)[part], signal.SIGKILL)
                eventually(server.is_ready, seconds=START_S_MAX)
                eventually(lambda part=part: part in parts_of(server.pid))
        finally:
            stop.set()
        for one in working:
            one.result(WAIT_S_MAX)
    server.wait_ready()
    found: set[str] = set()
    eventually(lambda: found.update(ids(stored(deployment.config))) or found >= set(accepted))


@pytest.mark.slow
def test_a_killed_front_stores_each_number_of_a_producer_once_and_in_order(deployment: Deployment) -> None:
    """Fronts are killed under load; the client opens another stream, at whichever front answers, and sends again."""
    server, keys = deployment.fronts, ("a", "b", "c")
    kills = 4
    server.wait_ready()

    async def publish() -> int:
        number = 0

        async def send(producer: AsyncProducer, until_: Callable[[], bool]) -> None:
            nonlocal number
            while not until_():
                key = {"partitionkey": keys[number % len(keys)]}
                event = new_event("t", "/s", {}, id=f"n{number}", extensions=key)
                await producer.send(event)
                number += 1

        async with (
            AsyncClient(server.grpc, patience_s=WAIT_S_MAX) as client,
            client.producer("default", name="counter") as producer,
        ):
            for kill in range(kills):
                ends = number + 300
                await send(producer, lambda ends=ends: number - producer.unacknowledged >= ends)
                part = f"front-{kill % 2}"
                await asyncio.to_thread(eventually, lambda part=part: part in parts_of(server.pid))
                os.kill(parts_of(server.pid)[part], signal.SIGKILL)
            ends = number + 300
            await send(producer, lambda: number >= ends)
        return number

    count = asyncio.run(publish())
    numbers: dict[int, list[int]] = {}

    def found() -> int:
        for partition, names in stored(deployment.config).items():
            numbers[partition] = [int(name[1:]) for name in names if name.startswith("n") and name[1:].isdecimal()]
        return sum(map(len, numbers.values()))

    eventually(lambda: found() >= count)
    assert sorted(number for own in numbers.values() for number in own) == list(range(count)), "each once"
    for partition, own in numbers.items():
        assert own == sorted(own), "in the order of the numbers"
        places = {partition_of_key(keys[number % len(keys)], PARTITIONS) for number in own}
        assert places <= {partition}
    server.wait_ready()


@pytest.mark.slow
def test_without_kafka_events_and_writes_are_refused(deployment: Deployment) -> None:
    server = deployment.one
    deployment.kafka.kill(1)
    try:
        eventually(lambda: not server.is_ready())
        request = urllib.request.Request(f"{server.url}/default/default", b"{}", {"content-type": "application/json"})
        for name, value in (("id", "refused"), ("source", "/s"), ("type", "t"), ("specversion", "1.0")):
            request.add_header(f"ce-{name}", value)
        started = time.monotonic()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        caught.value.close()
        assert caught.value.code == 503
        assert caught.value.headers["Retry-After"]
        assert time.monotonic() - started < KAFKA_APPEND_S_MAX / 2, "it has waited for Kafka"
        assert server.list("triggers", "default"), "what is known is read without Kafka"
    finally:
        deployment.kafka.restart(1)
    eventually(server.is_ready, seconds=START_S_MAX)
    assert post(server, "again") == 202
    create(server)
    found = ids(stored(deployment.config))
    assert "again" in found
    assert "refused" not in found
