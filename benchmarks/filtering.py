"""How much does a reader of one filter value save? The experiment that RabbitMQ published for its streams, on our log.

One producer, 100 events a second for 10 s, 10 kB each, one of 50 values at random; a reader that wants one of them;
filters of 16 bytes. Their client sends what came within 100 ms together, so a chunk holds 10 events here too; time
itself is not waited for. A chunk is read when it holds the value, q = 1 - (1 - 1/50)^10, or when its filter says
"perhaps" in vain: of the bytes, q + (1 - q) * FPR. Each of the 50 values is read by a reader of its own.

    python -m benchmarks.filtering --seeds 5
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bloom import false_positive_rate
from headgate.event.arrow import EVENT_SCHEMA
from headgate.filter.skipping.prune import filter_value_rule
from headgate.ingress.encode import Entries, encode
from headgate.log.bloom import hash_count
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.specs import LogRule
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import BLOOM_BYTES_MIN

RATE_PER_S = 100
SECONDS = 10
EVENT_BYTES = 10_000
VALUES = 50
BATCH_S = 0.1
"""How long a producer of RabbitMQ's collects what it sends together."""
BEYOND_MAX = 0.03


@dataclass(frozen=True)
class Result:
    """What one run of the experiment gave.

    Attributes:
        chunks: How many were written.
        log_bytes: Of all chunks.
        saved: Per reader, the share of the log's bytes that it did not read from the file.
        missed: Events that a reader wanted and did not get, all readers together.
    """

    chunks: int
    log_bytes: int
    saved: Sequence[float]
    missed: int

    @property
    def mean(self) -> float:
        """The share saved, over all readers."""
        return sum(self.saved) / len(self.saved)


def expected() -> float:
    """The share that the model says is saved."""
    events = round(RATE_PER_S * BATCH_S)
    holds = 1 - (1 - 1 / VALUES) ** events
    distinct = round(VALUES * holds)
    vain = false_positive_rate(BLOOM_BYTES_MIN, hash_count(BLOOM_BYTES_MIN * 8, distinct), distinct)
    return 1 - (holds + (1 - holds) * vain)


def write(directory: Path, rng: random.Random) -> list[str]:
    """Stores what the producer sends; returns each event's value."""
    rule = LogRule(filter_value_rule("customer"), BLOOM_BYTES_MIN)
    values = [f"customer-{rng.randrange(VALUES)}" for _ in range(RATE_PER_S * SECONDS)]
    size = round(RATE_PER_S * BATCH_S)
    with PartitionWriter(Partition(directory, "stop"), EVENT_SCHEMA) as writer:
        for first in range(0, len(values), size):
            events = [
                Event(
                    "1.0",
                    str(first + index),
                    "/experiment",
                    "order",
                    extensions={"customer": value},
                    data_kind=DataKind.BINARY,
                    data=rng.randbytes(EVENT_BYTES),
                )
                for index, value in enumerate(values[first : first + size])
            ]
            chunk = encode([Entries("default/default", rule, events)])
            writer.append(Encoded(chunk.batch, chunk.filter_values, bloom_bytes=chunk.bloom_bytes))
    return values


def run(directory: Path, seed: int) -> Result:
    """Writes the log below `directory` and reads it once for each value."""
    partition = directory / "0"
    values = write(partition, random.Random(seed))
    log_bytes = sum(path.stat().st_size for path in partition.glob("*.seg"))
    saved, missed = [], 0
    for value in sorted(set(values)):
        before, offsets = bytes_read(), set()
        with PartitionReader(Partition(partition, "stop"), start=0) as reader:
            while (chunk := reader.read(wanted=frozenset({value}))) is not None:
                offsets.update(range(chunk.first_offset, chunk.next_offset))
            taken = bytes_read() - before
        saved.append(1 - taken / log_bytes)
        missed += sum(one == value and offset not in offsets for offset, one in enumerate(values))
    chunks = len(values) // round(RATE_PER_S * BATCH_S)
    return Result(chunks, log_bytes, saved, missed)


def bytes_read() -> int:
    """By this process, from files, the page cache included."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def main() -> int:
    """Prints a line a seed; 1 when a reader missed an event or the mean is beyond the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    model, failed = expected(), False
    print(f"{'seed':>4} {'chunks':>6} {'log MB':>7} {'saved':>7} {'least':>7} {'most':>7} {'model':>7}")
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            result = run(Path(folder), seed)
        least, most = min(result.saved), max(result.saved)
        shares = " ".join(f"{share:>7.1%}" for share in (result.mean, least, most, model))
        print(f"{seed:>4} {result.chunks:>6} {result.log_bytes / 1e6:>7.1f} {shares}")
        failed |= result.missed > 0 or abs(result.mean - model) > BEYOND_MAX
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
