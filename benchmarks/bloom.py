"""How often does a chunk's filter say "perhaps" in vain? Measured beside the formula, and no value ever denied.

Every cell is the mean over many filters: a rate that says how often a reader of one value reads a chunk for nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys

from headgate.log.bloom import build, hash_value, might_contain
from headgate_api.limits import BLOOM_HASHES_MAX

VALUES = (10, 30, 50, 80, 200, 1_000)
SIZES = (16, 64, 128, 255)
HITS_MIN = 1_000
"""Fewer false positives say nothing about a rate to a few percent."""
ABOVE_MAX = 1.10


def false_positive_rate(size_bytes: int, k: int, distinct_count: int) -> float:
    """The rate that independent hashes would have: (1 - e^(-kn/m))^k."""
    return float((1 - math.exp(-k * distinct_count / (size_bytes * 8))) ** k)


def best(size_bytes: int, count: int) -> float:
    """The rate of independent hashes with the best whole number of them."""
    return min(false_positive_rate(size_bytes, k, count) for k in range(1, BLOOM_HASHES_MAX + 1))


def measure(size_bytes: int, count: int, probes: int) -> tuple[float, int]:
    """The measured rate and how many false positives it rests on."""
    filters = 100
    hits = 0
    for number in range(filters):
        bits, k, _ = build([f"in {number} {index}" for index in range(count)], size_bytes)
        hits += sum(might_contain(bits, k, [hash_value(f"out {number} {index}")]) for index in range(probes // filters))
    return hits / probes, hits


def denied(probes: int) -> int:
    """How often a value that is in a filter was denied, of `probes` values."""
    wrong = done = 0
    while done < probes:
        for count in VALUES:
            for size_bytes in SIZES:
                values = [f"{done} {index}" for index in range(count)]
                bits, k, _ = build(values, size_bytes)
                wrong += sum(not might_contain(bits, k, [hash_value(value)]) for value in values)
                done += count
    return wrong


def main() -> int:
    """Prints the table; 1 when a rate is above the formula by more than a tenth, or a value was denied."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, default=200_000, help="values asked for in each cell")
    parser.add_argument("--held", type=int, default=10_000_000, help="values asked for that are there")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    failed = False
    if not arguments.json:
        print(f"{'values':>6} {'bytes':>5} {'k':>3} {'measured':>10} {'formula':>10} {'ratio':>6}")
    for count in VALUES:
        for size_bytes in SIZES:
            expected = best(size_bytes, count)
            _, k, _ = build([str(index) for index in range(count)], size_bytes)
            rate, hits = measure(size_bytes, count, arguments.probes)
            ratio = rate / expected if expected * arguments.probes >= HITS_MIN else None
            failed |= ratio is not None and ratio > ABOVE_MAX
            if arguments.json:
                cell = {"values": count, "bytes": size_bytes, "k": k, "rate": rate, "formula": expected, "hits": hits}
                print(json.dumps(cell), flush=True)
            else:
                shown = "   few" if ratio is None else f"{ratio:6.2f}"
                print(f"{count:>6} {size_bytes:>5} {k:>3} {rate:>10.3%} {expected:>10.3%} {shown}", flush=True)
    wrong = denied(arguments.held)
    print(
        json.dumps({"held": arguments.held, "denied": wrong})
        if arguments.json
        else f"denied: {wrong} of {arguments.held}"
    )
    return int(failed or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
