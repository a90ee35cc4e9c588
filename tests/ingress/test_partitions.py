import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import xxhash

from headgate.event.arrow import StoredEvent
from headgate.ingress.encode import Entries
from headgate.ingress.errors import PartlyStoredError
from headgate.ingress.partitions import Partitions
from headgate.log.group_commit import SubmitChain
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.shares import PlacesTakenError
from headgate_api.errors import OverloadedError, UnavailableError
from headgate_api.event.model import Event, EventColumns
from headgate_api.limits import (
    COMMIT_QUEUE_BYTES_MAX,
    COMMIT_QUEUE_EVENTS_MAX,
    PARTITION_TURN_EVENTS_MAX,
    PARTITION_TURN_UNDER_WAY,
)
from tests.ingress.support import FakeLog, run

COUNT = 4


def event(id_, key=None):
    return Event("1.0", id_, "/s", "t", extensions={} if key is None else {"partitionkey": key})


def columns(events):
    names = frozenset[str]().union(*[event.extensions for event in events])
    return EventColumns(list(zip(*map(msgspec.structs.astuple, events), strict=True)), names)


def ids(log):
    return [[item.event.id for item in submit] for submit in log.submits]


def store(partitions, *events, size_bytes=100):
    run(partitions.store(ServedBroker("ns/b/uid", DEFAULT_RULE), events, size_bytes))


def test_a_key_is_mapped_by_xxh64():
    partitions = Partitions([FakeLog() for _ in range(COUNT)])
    assert [partitions.of_key(key) for key in ("a", "b", "ä")] == [
        xxhash.xxh64_intdigest(key.encode()) % COUNT for key in ("a", "b", "ä")
    ]
    assert {partitions.of_key(str(number)) for number in range(100)} == set(range(COUNT))


def test_the_same_key_always_goes_to_the_same_partition_as_text_or_number():
    logs = [FakeLog() for _ in range(COUNT)]
    partitions = Partitions(logs)
    store(partitions, event("1", "7"))
    store(partitions, event("2", 7))
    store(partitions, event("3", "7"))
    assert ids(logs[partitions.of_key("7")]) == [["1"], ["2"], ["3"]]


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_partitions_take_turns(key):
    logs = [FakeLog() for _ in range(COUNT)]
    partitions = Partitions(logs)
    for number in range(2 * COUNT):
        store(partitions, event(str(number), key))
    assert [len(log.events) for log in logs] == [2] * COUNT


@pytest.mark.parametrize("held", [list, columns])
def test_a_batch_without_keys_stays_together_and_takes_its_turn(held):
    logs = [FakeLog() for _ in range(2)]
    partitions = Partitions(logs)
    for _ in range(2):
        run(partitions.store(ServedBroker("ns/b/uid", DEFAULT_RULE), held([event("1"), event("2"), event("3")]), 100))
    assert [ids(log) for log in logs] == [[["1", "2", "3"]]] * 2


def test_under_load_a_turn_lasts_until_a_partition_has_had_its_events():
    taken, stored = [], None

    class Log:
        def __init__(self, number):
            self.number = number

        def enqueue(self, items, size_bytes, chain=None):
            taken.append(self.number)
            return stored

    async def storing():
        nonlocal stored
        stored = asyncio.get_running_loop().create_future()
        partitions = Partitions([Log(0), Log(1)])
        broker = ServedBroker("ns/b/uid", DEFAULT_RULE)
        requests = [
            asyncio.create_task(partitions.store(broker, [event("1")], 100))
            for _ in range(PARTITION_TURN_UNDER_WAY + PARTITION_TURN_EVENTS_MAX)
        ]
        await asyncio.sleep(0)
        stored.set_result(0)
        await asyncio.gather(*requests)
        for _ in range(2):
            await partitions.store(broker, [event("1")], 100)

    run(storing())
    few, last = PARTITION_TURN_UNDER_WAY, taken[PARTITION_TURN_UNDER_WAY - 1]
    assert taken[:few] == [1, 0] * (few // 2)
    assert taken[few:-3] == [last] * (PARTITION_TURN_EVENTS_MAX - 1)
    assert taken[-3:] == [1 - last, last, 1 - last]  # its turn is over, and then nothing is under way


@pytest.mark.parametrize("held", [list, columns])
def test_a_batch_is_split_by_partition_in_order(held):
    logs = [FakeLog() for _ in range(COUNT)]
    partitions = Partitions(logs)
    keys = ["a", "b", "c", "d", "e", "f"]
    assert len({partitions.of_key(key) for key in keys}) > 1
    events = [event(f"{key}{number}", key) for number in range(3) for key in keys]
    run(partitions.store(ServedBroker("ns/b/uid", DEFAULT_RULE), held(events), 1800))
    for index, log in enumerate(logs):
        mine = [each for each in events if partitions.of_key(each.extensions["partitionkey"]) == index]
        assert log.submits == ([[StoredEvent("ns/b/uid", each) for each in mine]] if mine else [])
        assert log.sizes == ([100 * len(mine)] if mine else [])


def test_one_partition_takes_everything():
    log = FakeLog()
    store(Partitions([log]), event("1", "a"), event("2", "b"), event("3"))
    assert ids(log) == [["1", "2", "3"]]


def two_partitions_and_keys(first, second):
    partitions = Partitions([first, second])
    keys = {partitions.of_key(str(number)): str(number) for number in range(20)}
    return partitions, keys


def test_when_one_of_two_partitions_fails_the_producer_is_told_to_send_again():
    good, bad = FakeLog(), FakeLog(UnavailableError("the disk is full"))
    partitions, keys = two_partitions_and_keys(good, bad)
    with pytest.raises(PartlyStoredError, match="1 of 2 parts of the batch are stored: the disk is full") as caught:
        store(partitions, event("1", keys[0]), event("2", keys[1]))
    assert (caught.value.http_status, caught.value.retriable) == (503, True)
    assert "whole batch" in caught.value.hint
    bad.error = None
    store(partitions, event("1", keys[0]), event("2", keys[1]))
    assert (ids(good), ids(bad)) == ([["1"], ["1"]], [["2"]])


def test_when_every_partition_fails_nothing_is_stored_and_the_error_is_the_log_s_own():
    partitions, keys = two_partitions_and_keys(FakeLog(OverloadedError("full")), FakeLog(OverloadedError("full")))
    with pytest.raises(OverloadedError, match="full"):
        store(partitions, event("1", keys[0]), event("2", keys[1]))


@pytest.mark.parametrize(("count", "size_bytes"), [(1_000, 1_000), (1, 1 << 20)])
def test_a_namespace_that_floods_a_partition_leaves_room_for_others(count, size_bytes):
    """By events, and by the bytes of large ones."""
    log = FakeLog()
    partitions = Partitions([log])
    loud, quiet = (ServedBroker(f"{name}/b/uid", DEFAULT_RULE) for name in ("loud", "quiet"))
    chunk = [event(str(number)) for number in range(count)]

    async def flood():
        log.gate = asyncio.Event()
        waiting = []
        for _ in range(100):
            waiting.append(asyncio.ensure_future(partitions.store(loud, chunk, size_bytes)))
            await asyncio.sleep(0)
            if waiting[-1].done():
                break
        refused = waiting.pop()
        with pytest.raises(PlacesTakenError, match=r"'loud'.*COMMIT_QUEUE_EVENTS_MAX"):
            await refused
        producing = SimpleNamespace(broker="loud/b/uid", chain=SubmitChain())
        numbered = {0: Entries("loud/b/uid", DEFAULT_RULE, chunk)}
        with pytest.raises(PlacesTakenError):
            await partitions._appender.append_numbered(producing, numbered, size_bytes)
        assert producing.chain.problem is not None, "nothing is stored behind it"
        waiting += [asyncio.ensure_future(partitions.store(quiet, chunk, size_bytes)) for _ in range(5)]
        log.gate.set()
        await asyncio.gather(*waiting)
        await partitions.store(loud, chunk, size_bytes)
        return len(waiting) - 5

    share = run(flood())
    most = min(COMMIT_QUEUE_EVENTS_MAX // count, COMMIT_QUEUE_BYTES_MAX // size_bytes)
    assert most // 2 < share < most * 3 // 4
    appender: Any = partitions._appender
    assert appender._waiting[0]._total == 0


def test_an_error_of_the_program_is_not_taken_for_a_refusal():
    partitions, keys = two_partitions_and_keys(FakeLog(), FakeLog(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        store(partitions, event("1", keys[0]), event("2", keys[1]))


def test_a_boolean_key_is_its_canonical_string():
    logs = [FakeLog() for _ in range(COUNT)]
    partitions = Partitions(logs)
    store(partitions, msgspec.structs.replace(event("1"), extensions={"partitionkey": True}))
    assert ids(logs[partitions.of_key("true")]) == [["1"]]


def test_a_log_has_partitions():
    with pytest.raises(ValueError, match="at least one"):
        Partitions([])
