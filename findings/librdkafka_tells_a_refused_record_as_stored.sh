#!/usr/bin/env bash
# An idempotent producer of librdkafka tells that a record is stored which no broker has.
#
# With several requests in flight, the first one of a producer is refused with NOT_LEADER_OR_FOLLOWER (a topic that was
# just made, a leader that moves), and the second one is taken: a broker knows nothing of a new producer, and takes
# whichever sequence number comes first. The library concludes from the answer to the second that the first is stored,
# too ("implicit ack"): its delivery report has no error. What tells it apart is that the report has no offset.
# Known as issue 921 of confluentinc/confluent-kafka-go, open in November 2026.
#
# Here librdkafka's own mock of a cluster refuses one request. Seen with real brokers of Kafka 4.1.0 as well, in about
# one of twenty first streams to a topic that had just been made.
#
# Seen: records 0, 1, 2 are told stored without an error, 0 without an offset; the partition holds 1 and 2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check confluent-kafka==2.16.1
cat >produce.py <<'PY'
import ctypes
from pathlib import Path

import confluent_kafka as kafka

PRODUCE, NOT_LEADER, POINTER = 0, 6, ctypes.c_void_p
(path,) = (Path(kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*")
library = ctypes.CDLL(str(path))
library.rd_kafka_handle_mock_cluster.restype = POINTER
library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p

owner = kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
handle = POINTER.from_address(id(owner) + 2 * ctypes.sizeof(POINTER))  # the first field behind Python's own two
cluster = POINTER(library.rd_kafka_handle_mock_cluster(handle))
library.rd_kafka_mock_topic_create(cluster, b"events", 1, 1)
bootstrap = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

producer = kafka.Producer(
    {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 0,
        "batch.num.messages": 1,
        "retry.backoff.ms": 500,
        "log_level": 0,
    }
)
producer.list_topics("events", timeout=10)
errors = (ctypes.c_int * 1)(NOT_LEADER)
library.rd_kafka_mock_push_request_errors_array(cluster, ctypes.c_int16(PRODUCE), ctypes.c_size_t(1), errors)
told = {}


def tell(error, record):
    told[record.value()] = error, record.offset()


for number in range(3):
    producer.produce("events", str(number), partition=0, on_delivery=tell)
assert producer.flush(30) == 0

own = {"group.id": "g", "auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0}
consumer = kafka.Consumer({"bootstrap.servers": bootstrap, **own})
consumer.assign([kafka.TopicPartition("events", 0, 0)])
stored = []
while (found := consumer.poll(30)) is not None and found.error() is None:
    stored.append(found.value())
consumer.close()
print(f"librdkafka {kafka.libversion()[0]}: told {told}, stored {stored}")
assert told == {b"0": (None, None), b"1": (None, 0), b"2": (None, 1)}
assert stored == [b"1", b"2"]
PY
venv/bin/python produce.py
