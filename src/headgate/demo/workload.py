"""What the demo publishes and who wants it: orders, users and sensors, and triggers with the truth about each.

A trigger's `wanted` is plain Python written beside its filter, so that the demo can say what should have arrived
without asking Headgate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Filter = dict[str, Any]
Data = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One event: its type and its JSON data."""

    type: str
    data: Data


@dataclass(frozen=True)
class DemoTrigger:
    """A trigger, whose name is also the path of its subscriber, with what is true about it.

    `why` is what it shows, `filter` is `spec.filter` as a user writes it. It must get the events that are `wanted`. For
    those for which it `fails`, its filter is an error: they are not delivered, but counted.
    """

    name: str
    why: str
    filter: Filter
    wanted: Callable[[Sample], bool]
    fails: Callable[[Sample], bool] = lambda _: False


TRIGGERS = (
    DemoTrigger(
        "paid-orders",
        "attributes",
        {"attributes": {"type": "com.shop.order.paid"}},
        lambda e: e.type == "com.shop.order.paid",
    ),
    DemoTrigger(
        "big-eu-orders",
        "CEL on data",
        {"expression": 'ce.type == "com.shop.order.paid" && data.total > 150 && data.region.startsWith("eu-")'},
        lambda e: e.type == "com.shop.order.paid" and e.data["total"] > 150 and e.data["region"].startswith("eu-"),
    ),
    DemoTrigger(
        "premium-signups",
        "CEL, value in a list",
        {"expression": 'ce.type == "com.shop.user.signed-up" && data.user.tier in ["gold", "platinum"]'},
        lambda e: e.type == "com.shop.user.signed-up" and e.data["user"]["tier"] in ("gold", "platinum"),
    ),
    DemoTrigger(
        "hot-sensors",
        "CEL, numbers",
        {"expression": 'ce.type.startsWith("com.plant.") && data.celsius >= 90.0'},
        lambda e: e.type.startswith("com.plant.") and e.data["celsius"] >= 90.0,
    ),
    DemoTrigger(
        "vip-orders",
        "CEL macro, decided by cel-cpp",
        {"expression": 'ce.type.startsWith("com.shop.order.") && data.tags.exists(t, t == "vip")'},
        lambda e: e.type.startswith("com.shop.order.") and "vip" in e.data["tags"],
    ),
    DemoTrigger("nobody", "matches nothing", {"attributes": {"type": "com.shop.order.teleported"}}, lambda _: False),
    DemoTrigger(
        "adults",
        "filter error: data.age is absent",
        {"expression": 'ce.type == "com.shop.user.signed-up" && data.age >= 18'},
        lambda _: False,
        lambda e: e.type == "com.shop.user.signed-up",
    ),
)


def samples(seed: int) -> Iterator[Sample]:
    """An endless, repeatable stream of events: half orders, a third sensors, the rest users."""
    rng = random.Random(seed)
    regions = ("eu-west", "eu-central", "us-east", "ap-south")
    while True:
        kind = rng.choices(("order", "sensor", "user"), (5, 3, 2))[0]
        if kind == "order":
            verb = rng.choices(("created", "paid", "shipped"), (3, 2, 1))[0]
            tags = rng.sample(("new", "vip", "promo", "app"), rng.randrange(3))
            total = round(rng.lognormvariate(4.5, 0.8), 2)
            yield Sample(f"com.shop.order.{verb}", {"total": total, "region": rng.choice(regions), "tags": tags})
        elif kind == "sensor":
            yield Sample(
                "com.plant.sensor.reading",
                {"sensor": f"s{rng.randrange(40):02d}", "celsius": round(rng.gauss(70, 14), 1)},
            )
        else:
            tier = rng.choices(("free", "gold", "platinum"), (7, 2, 1))[0]
            yield Sample("com.shop.user.signed-up", {"user": {"id": f"u{rng.randrange(10_000)}", "tier": tier}})
