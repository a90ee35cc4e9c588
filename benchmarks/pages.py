"""How long does each page of the console wait for its answers, at 10,000 triggers and a million stored events?

    python -m benchmarks.pages                          prepares a server, asks, prints a table; status 1 over the limit
    python -m benchmarks.pages --events 100000 --triggers 1000

Triggers and events are written as the server's processes write them, before it starts. After its start it matches and
delivers. Then every request that the pages make is asked again and again, one at a time, on one connection as a browser
has it. What a page asks at once counts as one: the sum. What lint says of a trigger is a line that comes by itself; the
first one after a start compares all filters of the broker.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rich.table import Table

from benchmarks.load import subscribers
from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.log.directory import Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from headgate.settings import Settings
from headgate.testing.server import Server, object_of
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import BATCH_EVENTS_MAX
from headgate_api.objects.kinds import Kind

LIMIT_MS = 200
"""What people feel as at once."""
TYPES, SOURCES = 100, 3
REGIONS = ("eu-west-1", "eu-central-1", "us-east-1", "us-west-2", "ap-east-1")
OWN, EVENTING = "/apis/headgate.dev/v1", "/apis/eventing.knative.dev/v1"
BROKER = f"{EVENTING}/namespaces/default/brokers/default"
SETTLED_S_MAX = 600.0


class Ask(NamedTuple):
    """A request of a page."""

    path: str
    body: object = None


Page = list[Ask]
"""What a page asks at once."""


def specs(count: int, url: str) -> Iterator[dict[str, Any]]:
    """Triggers; an event is wanted by one in some hundred of them at most."""
    rng = random.Random(1)
    for number in range(count):
        type_ = f'ce.type == "com.example.t{number % TYPES}"'
        cel = (
            f'{type_} && data.customer == "c-{rng.randrange(1_000_000)}"',
            f'{type_} && data.amount > {10_000 - rng.random():.4f} && data.region == "{rng.choice(REGIONS)}"',
            f'data.customer == "c-{rng.randrange(1_000_000)}"',
            f'ce.source == "/shop/{number % SOURCES}" && data.amount < {rng.random() / 100:.5f}',
        )[number % 4]
        yield {"broker": "default", "filter": {"cel": cel}, "subscriber": {"uri": f"{url}/{number}"}}


def event(number: int, rng: random.Random) -> Event:
    """One of them."""
    data = {
        "customer": f"c-{rng.randrange(1_000_000)}",
        "amount": round(rng.random() * 10_000, 4),
        "region": rng.choice(REGIONS),
        "items": [{"sku": f"k{rng.randrange(500)}", "n": 2}],
    }
    return Event(
        "1.0",
        str(number),
        f"/shop/{number % SOURCES}",
        f"com.example.t{rng.randrange(TYPES)}",
        data_kind=DataKind.JSON,
        datacontenttype="application/json",
        data=json.dumps(data).encode(),
    )


def store(data: Path, identity: str, count: int, chunk: int) -> float:
    """Writes events to the log, in turn to each partition; returns the seconds."""
    rng, started = random.Random(2), time.monotonic()
    paths = [data / "log" / str(number) for number in range(Settings().partitions)]
    writers = [PartitionWriter(Partition(path, "stop"), EVENT_SCHEMA) for path in paths]
    try:
        for number, first in enumerate(range(0, count, chunk)):
            events = [event(one, rng) for one in range(first, min(first + chunk, count))]
            batch = to_batch([StoredEvent(identity, one) for one in events])
            writers[number % len(writers)].append(Encoded(batch, [one.type for one in events]))
    finally:
        for writer in writers:
            writer.close()
    return time.monotonic() - started


def create(data: Path, count: int, url: str) -> tuple[str, float]:
    """Creates triggers and a subscription in the store; returns the identity of their broker, and the seconds."""
    started = time.monotonic()
    with contextlib.closing(Store.open(data / "control.db")) as opened:
        admission = Admission(opened)
        for number, spec in enumerate(specs(count, url)):
            admission.create(Kind.TRIGGER, object_of("triggers", "default", f"t{number}", spec))
        spec = {"broker": "default", "filter": {"cel": "data.amount < 1"}}
        admission.create(Kind.SUBSCRIPTION, object_of("subscriptions", "default", "pulled", spec))
        return opened.snapshot().brokers["default/default"], time.monotonic() - started


def pages(server: Server, events: int, triggers: int) -> dict[str, Page]:
    """What each page asks, as the console writes it."""

    def timeline(id_: str) -> Page:
        return [Ask(f"{BROKER}/timeline?id={id_}")]

    trigger = f"{EVENTING}/namespaces/default/triggers/t{triggers // 2}"
    subscription = f"{OWN}/namespaces/default/subscriptions/pulled"
    rules = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"},
    }
    rng = random.Random(3)
    tried = [
        {
            "specversion": "1.0",
            "id": one.id,
            "source": one.source,
            "type": one.type,
            "data": json.loads(one.data or b"0"),
        }
        for one in (event(number, rng) for number in range(50))
    ]
    seventh = 'ce.type == "com.example.t7"'
    middle = next(itertools.islice(_continues(server, triggers // 100), None, None), "")
    return {
        "Console": [Ask("/ui/")],
        "Overview": [Ask(f"{OWN}/summary")],
        "Rights": [Ask("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", rules)],
        "Namespaces": [Ask(f"{OWN}/selfsubjectnamespaces")],
        "Triggers": [Ask(f"{OWN}/triggerstats?limit=50")],
        "Triggers, in the middle": [Ask(f"{OWN}/triggerstats?limit=50&continue={quote(middle)}")],
        "Triggers, searched": [Ask(f"{OWN}/triggerstats?limit=50&search=c-99")],
        "Triggers, nothing found": [Ask(f"{OWN}/triggerstats?limit=50&search=nosuch-filter")],
        "Triggers in trouble": [Ask(f"{OWN}/triggerstats?limit=50&state=troubled")],
        "Trigger": [
            Ask(trigger),
            Ask(f"{trigger}/stats"),
            Ask(f"{OWN}/namespaces/default/deadletters?trigger=t{triggers // 2}&newest=true&limit=5"),
            Ask("/default/default/events?last=20"),
        ],
        "Trigger, lint": [Ask(f"{BROKER}/lint?of=Trigger/t{triggers // 2}")],
        "Brokers": [Ask(f"{OWN}/brokerstats?limit=50")],
        "Broker": [Ask(BROKER), Ask(f"{BROKER}/stats")],
        "Subscriptions": [Ask(f"{OWN}/subscriptions?limit=50")],
        "Subscription": [Ask(subscription), Ask(f"{subscription}/stats"), Ask(f"{subscription}/consumers")],
        "Dead letters": [Ask(f"{OWN}/deadletters/counts?limit=500"), Ask(f"{OWN}/deadletters?limit=50&newest=true")],
        "Events, the last ones": [Ask("/default/default/events?last=50")],
        "Event, the newest": timeline(str(events - 1)),
        "Event, in the middle": timeline(str(events // 2)),
        "Event, the oldest": timeline("0"),
        "Event, not there": timeline("nosuch"),
        "Event, why not": [Ask(f"{trigger}/why?id={events // 2}")],
        "Catalogue": [Ask(f"{BROKER}/catalogue")],
        "Catalogue, a type": [Ask(f"{BROKER}/catalogue?type=com.example.t7&source=/shop/1")],
        "Catalogue, a filter": [Ask(f"{BROKER}/catalogue", {"filter": 'ce.type == "com.example.t7x"'})],
        "Chunks": [Ask(f"{OWN}/chunks?limit=50")],
        "Chunks, of a filter": [Ask(f"{OWN}/chunks?limit=50&filter={quote(seventh)}")],
        "Playground": [Ask(f"{OWN}/filters/dialects")],
        "Playground, a trial": [
            Ask(f"{OWN}/filters/test", {"filter": "data.amount > 5000", "events": tried, "explain": True})
        ],
    }


def _continues(server: Server, pages_count: int) -> Iterator[str]:
    """Where the pages of the list begin, one after the other; the last is the one that is wanted."""
    found = ""
    for _ in range(max(1, min(pages_count, 20))):
        answer = server.call("GET", f"{server.url}{OWN}/triggerstats?limit=500&continue={quote(found)}")
        if "continue" not in answer:
            break
        found = str(answer["continue"])
        yield found


def ask(connection: http.client.HTTPConnection, one: Ask) -> None:
    """One request and its whole answer."""
    body = None if one.body is None else json.dumps(one.body)
    connection.request("GET" if body is None else "POST", one.path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    if answer.status not in (200, 201):
        raise SystemExit(f"error: {one.path}: {answer.status} {said[:500].decode(errors='replace')}")


def measure(server: Server, page: Page, times: int) -> list[float]:
    """How long a page waits, in ms, each time."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    took = []
    for _ in range(times):
        started = time.monotonic()
        for one in page:
            ask(connection, one)
        took.append((time.monotonic() - started) * 1e3)
        time.sleep(0.05)
    connection.close()
    return took


def settle(server: Server, events: int) -> float:
    """Waits until the newest events are matched and what was matched is delivered; returns the seconds."""
    started = time.monotonic()
    path = f"{server.url}{BROKER}/timeline?id="

    def is_settled() -> bool:
        newest = [server.call("GET", f"{path}{events - 1 - back}") for back in (0, 1_000)]
        backlog = server.call("GET", f"{server.url}{OWN}/summary").get("backlog", {})
        return all(one.get("trace", {}).get("evaluated") for one in newest) and not backlog.get("deliveries")

    while not is_settled():
        if time.monotonic() - started > SETTLED_S_MAX:
            raise SystemExit(f"error: not all events are matched and delivered after {SETTLED_S_MAX:g} s")
        time.sleep(1)
    return time.monotonic() - started


def run(server: Server, arguments: argparse.Namespace, url: str) -> dict[str, list[float]]:
    """Prepares, and asks every page."""
    server.data.mkdir()
    identity, loaded_s = create(server.data, arguments.triggers, url)
    stored_s = store(server.data, identity, arguments.events, arguments.chunk)
    with server:
        settled_s = settle(server, arguments.events)
        print(
            f"triggers Ready after {loaded_s:.0f} s, log written in {stored_s:.0f} s, settled after {settled_s:.0f} s"
        )
        time.sleep(arguments.rest)
        found = pages(server, arguments.events, arguments.triggers)
        return {name: measure(server, page, arguments.times) for name, page in found.items()}


def main() -> None:
    """Parses the flags, runs, prints; exit status 1 when a page takes longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--chunk", type=int, default=100, help="events that are stored together")
    parser.add_argument("--times", type=int, default=20, help="how often each page is asked")
    parser.add_argument("--rest", type=float, default=10, help="seconds of rest before the first question")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if not 0 < arguments.chunk <= BATCH_EVENTS_MAX:
        parser.error(f"--chunk must be in 1..{BATCH_EVENTS_MAX}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        url, _ = stack.enter_context(subscribers())
        took = run(Server(folder / "data", log=folder / "server.log"), arguments, url)
    missed = [name for name, times in took.items() if max(times) > LIMIT_MS]
    if arguments.json:
        print(json.dumps({"limit_ms": LIMIT_MS, "pages": took, "missed": missed}))
        raise SystemExit(bool(missed))
    table = Table(
        title=f"{arguments.triggers:,} triggers, {arguments.events:,} events: ms until a page has its answers"
    )
    for head in ("page", "first", "p50", "max", "limit", ""):
        table.add_column(head, justify="left" if head in ("page", "") else "right")
    for name, times in took.items():
        figures = (times[0], statistics.median(times), max(times))
        table.add_row(name, *(f"{one:.0f}" for one in figures), str(LIMIT_MS), "over" if name in missed else "")
    print_whole(table)
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
