#!/usr/bin/env bash
# A producer of librdkafka that has been fenced says so to calls of transactions alone: `produce` says "fatal".
#
# A newer producer has the same transactional.id: Kafka answers PRODUCER_FENCED to the older one. The library hears of
# it in its own thread, behind the first record of a transaction. From then on `produce` raises _FATAL,
# "Unable to produce message: Local: Fatal error", whose `fatal()` is False; no code tells a fence from any other
# fatal error. Which of the two one meets depends on when the thread hears of it: a program that looks for _FENCED only
# in what it caught takes a fence for a broken client now and then. `abort_transaction` then raises the reason.
#
# Here librdkafka's own mock of a cluster gives that answer. Seen with real brokers of Kafka 4.1.0 as well.
#
# Seen: produce: _FATAL, fatal() False; abort_transaction: _FENCED, fatal() True.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check confluent-kafka==2.16.1
cat >fence.py <<'PY'
import ctypes
import time
from pathlib import Path

import confluent_kafka as kafka

ADD_PARTITIONS, PRODUCER_FENCED, POINTER = 24, 90, ctypes.c_void_p
(path,) = (Path(kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*")
library = ctypes.CDLL(str(path))
library.rd_kafka_handle_mock_cluster.restype = POINTER
library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p

owner = kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
handle = POINTER.from_address(id(owner) + 2 * ctypes.sizeof(POINTER))  # the first field behind Python's own two
cluster = POINTER(library.rd_kafka_handle_mock_cluster(handle))
library.rd_kafka_mock_topic_create(cluster, b"events", 1, 1)
bootstrap = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()


def refused(call):
    try:
        call()
    except kafka.KafkaException as error:
        return error.args[0]
    return None


old = kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "one", "linger.ms": 0, "log_level": 0})
old.init_transactions(30)
errors = (ctypes.c_int * 1)(PRODUCER_FENCED)
library.rd_kafka_mock_push_request_errors_array(cluster, ctypes.c_int16(ADD_PARTITIONS), ctypes.c_size_t(1), errors)
old.begin_transaction()
ends = time.monotonic() + 30
while (said := refused(lambda: old.produce("events", "x", partition=0))) is None and time.monotonic() < ends:
    time.sleep(0.01)
reason = refused(lambda: old.abort_transaction(30))
print(f"librdkafka {kafka.libversion()[0]}")
for call, error in (("produce", said), ("abort_transaction", reason)):
    print(f"{call}: {error.name()}, fatal() {error.fatal()}: {error.str()}")
assert (said.code(), said.fatal()) == (kafka.KafkaError._FATAL, False)
assert (reason.code(), reason.fatal()) == (kafka.KafkaError._FENCED, True)
PY
venv/bin/python fence.py
