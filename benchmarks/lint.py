"""What does it cost to compare a hundred thousand filters with one another, and again after one of them has changed?

    python -m benchmarks.lint [--filters 100000] [--changes 20]

The filters are of teams, as teams write them: an event's type, a few attributes, comparisons of data, many alike with
other constants, some twice. Each of the changes is of one filter, which becomes another one of its kind, and after it
the index takes it up and says of every filter what is sure. The goal is 2 s for each; the first time is the index made
anew.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping

from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.lint import FilterIndex, Related
from headgate.objects.store.plans import PlanDecoder, encode_plan
from headgate_api.limits import GC_YOUNG_OBJECTS

NOUNS = ("order", "invoice", "payment", "shipment", "user", "cart", "ticket", "device", "alarm", "document")
VERBS = ("created", "updated", "deleted", "paid", "sent", "failed", "closed", "opened")
REGIONS = ("eu", "us", "asia", "africa")
FILTERS_OF_A_TEAM = 100
GOAL_S = 2.0


def type_of(rng: random.Random, team: int) -> str:
    return f"com.example.team{team}.{rng.choice(NOUNS)}.{rng.choice(VERBS)}"


def prefix_of(rng: random.Random, team: int) -> str:
    return f"com.example.team{team}.{rng.choice(NOUNS)}."


KINDS: dict[str, tuple[int, Callable[[random.Random, int], str]]] = {
    "type": (20, lambda rng, team: f'ce.type == "{type_of(rng, team)}"'),
    "types": (8, lambda rng, team: f'ce.type in ["{type_of(rng, team)}", "{type_of(rng, team)}"]'),
    "prefix": (6, lambda rng, team: f'ce.type.startsWith("{prefix_of(rng, team)}")'),
    "attributes": (
        16,
        lambda rng, team: (
            f'ce.type == "{type_of(rng, team)}" && ce.source == "/team{team}/{rng.randrange(20)}"'
            f' && ce.tenant == "t{rng.randrange(1000)}"'
        ),
    ),
    "amount": (20, lambda rng, team: f'ce.type == "{type_of(rng, team)}" && data.amount > {rng.randrange(10_000)}'),
    "range": (
        6,
        lambda rng, team: (
            f'ce.type.startsWith("{prefix_of(rng, team)}") && data.amount >= {rng.randrange(500)}'
            f" && data.amount < {rng.randrange(500, 1_000)}"
        ),
    ),
    "customer": (8, lambda rng, team: f'data.customer.id == "c{rng.randrange(20_000)}" && data.tier == "gold"'),
    "region": (
        6,
        lambda rng, team: (
            f'data.region == "{rng.choice(REGIONS)}" && data.amount > {rng.randrange(10_000)}'
            f' && data.state != "{rng.choice(VERBS)}"'
        ),
    ),
    "either": (
        4,
        lambda rng, team: (
            f'ce.type == "{type_of(rng, team)}" || (ce.subject.endsWith("/{rng.randrange(100)}") && has(data.urgent))'
        ),
    ),
    "threshold": (2, lambda rng, team: f"data.amount > {rng.randrange(100_000)}"),
    "pattern": (2, lambda rng, team: f'ce.type.matches("{prefix_of(rng, team)}.*d") && data.n == {rng.randrange(9)}'),
    "mistake": (1, lambda rng, team: f"data.amount > {rng.randrange(5, 9)} && data.amount < {rng.randrange(5)}"),
    "all": (1, lambda rng, team: f'ce.type.startsWith("com.example.team{team}.")'),
}
"""How many of a hundred filters are of a kind, and one of them for a team."""


def made(count: int, rng: random.Random) -> tuple[dict[str, CompiledFilter], dict[str, str]]:
    """Compiled filters by name, and the kind of each."""
    kinds = rng.choices(list(KINDS), [share for share, _ in KINDS.values()], k=count)
    decoder = PlanDecoder()
    filters: dict[str, CompiledFilter] = {}
    for number, kind in enumerate(kinds):
        text = KINDS[kind][1](rng, number // FILTERS_OF_A_TEAM)
        filters[f"Trigger/t{number}"] = decoder.decode(encode_plan(compile_cel(text)))
    return filters, dict(zip(filters, kinds, strict=True))


def answered(index: FilterIndex) -> list[Related]:
    return [index.of(name) for name in index.filters]


def main() -> int:
    """Prints the times; 1 where one is over the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filters", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=20, help="one filter is changed so many times")
    arguments = parser.parse_args()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)  # as the process does that compares
    rng = random.Random(1)
    filters, kinds = made(arguments.filters, rng)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    index = FilterIndex(filters)
    indexed = time.perf_counter()
    answers = answered(index)
    ended = time.perf_counter()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(f"{len(filters):,} filters, {len({one.cel for one in filters.values()}):,} different")
    said = Counter(what for one in answers for what in one.__struct_fields__ if getattr(one, what))
    print(f"{sum(map(bool, answers)):,} with a remark:", *(f"{what} {count:,}" for what, count in said.most_common()))
    print(f"first time {ended - began:.1f} s: index {indexed - began:.1f}, answers {ended - indexed:.1f}; {grown} MiB")
    most = 0.0
    for kind in list(KINDS) + rng.choices(list(KINDS), k=max(0, arguments.changes - len(KINDS))):
        most = max(most, changed(index, kinds, kind, rng))
    print(f"most of a change {most:.2f} s")
    return int(most > GOAL_S)


def changed(index: FilterIndex, kinds: Mapping[str, str], kind: str, rng: random.Random) -> float:
    """Changes a filter of a kind to another one, and has everything said again; the seconds of that."""
    name = rng.choice([name for name, one in kinds.items() if one == kind])
    team = int(name.removeprefix("Trigger/t")) // FILTERS_OF_A_TEAM
    filters = {**index.filters, name: compile_cel(KINDS[kind][1](rng, team))}
    began = time.perf_counter()
    index.update(filters)
    updated = time.perf_counter()
    answered(index)
    ended = time.perf_counter()
    print(f"{kind:<12} {ended - began:5.2f} s: update {updated - began:.2f}, answers {ended - updated:.2f}", flush=True)
    return ended - began


if __name__ == "__main__":
    sys.exit(main())
