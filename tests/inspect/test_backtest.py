"""A backtest counts what a filter would have taken: page by page, exactly or of a sample."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from headgate.filter.cel.errors import FilterError
from headgate.filter.skipping.prune import filter_value_rule
from headgate.inspect import backtest as backtest_module
from headgate.inspect.backtest import Backtests
from headgate.log.directory import LogDirectory
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.store.store import Store
from headgate.scan import counting
from headgate.scan import pages as scan_pages
from headgate.scan.chunks import ChunkLog
from headgate.scan.counting import CountPage, CountRequest, windows
from headgate.scan.pages import LogScanner
from headgate.server.peers.local_http import answering, requested
from headgate.server.peers.reader_client import ReaderScanner, count_route
from headgate.shares import PlacesTakenError
from headgate_api import limits, positions
from headgate_api.backtest import BacktestPage, BacktestRequest, BacktestResult, BacktestSummary
from headgate_api.errors import InvalidInputError
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.positions import PositionError
from tests.commands import headgate
from tests.inspect.stored_orders import HOUR_US, START_US, TRIGGERS, PlainCount, StoredOrder, fill

PAID = 'ce.type == "order.paid"'
LARGE = "data.n >= 500"
HEADGATE = str(Path(sys.executable).with_name("headgate"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backtest") / "data"


@pytest.fixture(scope="module")
def orders(data: Path) -> list[StoredOrder]:
    return fill(data)


@pytest.fixture
def backtests(data: Path, orders: list[StoredOrder]) -> Iterator[Backtests]:
    with closing(Store.open(data / "control.db")) as store, ThreadPoolExecutor(2) as threads:
        log = ChunkLog(LogDirectory(data / "log", "stop"))
        yield Backtests(store, log, LogScanner(log, threads))


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page holds everything, however slow the machine is."""
    monkeypatch.setattr(counting, "SCAN_TURN_S", 60.0)
    monkeypatch.setattr(scan_pages, "SCAN_REQUEST_TURN_S", 60.0)


async def pages(
    backtests: Backtests, asked: BacktestRequest, broker: str = "default/default"
) -> AsyncIterator[BacktestPage]:
    page = await backtests.page(broker, asked)
    yield page
    while page.next:
        page = await backtests.page(broker, msgspec.structs.replace(asked, next=page.next))
        yield page


def run(backtests: Backtests, **asked: Any) -> tuple[BacktestSummary, int]:
    """The summary, and how many pages it took."""
    wanted = BacktestRequest(**asked)

    async def work() -> tuple[BacktestSummary, int]:
        result, count, done = BacktestResult(wanted.share, has_second=bool(wanted.against)), 0, 0.0
        async for page in pages(backtests, wanted):
            assert page.passed <= page.stored
            assert page.of == "filter" or not page.both  # counted once
            result.add(page)
            assert result.done >= done
            done, count = result.done, count + 1
        assert done == 1
        return result.summary(), count

    return asyncio.run(work())


def hours_of(summary: BacktestSummary, name: str = "taken") -> Counter[int]:
    by = {one.hour: getattr(one, name) for one in summary.hours}
    numbers = {f"2026-01-01T{number:02}:00Z": number for number in range(24)}
    return +Counter({numbers[hour]: count for hour, count in by.items()})


@pytest.mark.parametrize(
    "cel", [PAID, LARGE, f"{PAID} && {LARGE}", "true", "false", "data.nosuch > 1", 'ce.type == "nosuch"']
)
def test_counts_are_those_of_a_plain_count(backtests: Backtests, orders: list[StoredOrder], cel: str) -> None:
    plain = PlainCount(orders, cel)
    found, _ = run(backtests, filter=cel)
    assert found.taken == len(plain.places)
    assert hours_of(found) == plain.hours
    assert found.complete
    assert not found.sampled
    assert found.scanned == found.stored > len(orders)
    assert found.errors <= plain.errors  # chunks are skipped for which the filter cannot be true
    overlaps = {one.name: one.both for one in found.triggers}
    assert overlaps == {
        f"default/{name}": len(plain.places & PlainCount(orders, other).places) for name, other in TRIGGERS.items()
    }


@pytest.mark.usefixtures("unhurried")
def test_chunks_are_skipped_by_the_filter(backtests: Backtests) -> None:
    found, _ = run(backtests, filter=PAID)
    assert found.chunks_skipped > 20
    assert found.chunks_read + found.chunks_skipped == 80
    nothing, _ = run(backtests, filter='ce.type == "nosuch"')
    assert (nothing.taken, nothing.chunks_read) == (0, 0)


def test_two_filters_are_compared(backtests: Backtests, orders: list[StoredOrder]) -> None:
    one, other = PlainCount(orders, PAID), PlainCount(orders, LARGE)
    found, _ = run(backtests, filter=PAID, against={"cel": LARGE})
    assert (found.taken, found.against, found.both) == (
        len(one.places),
        len(other.places),
        len(one.places & other.places),
    )
    assert found.against_errors is not None
    assert found.against_errors <= other.errors
    assert hours_of(found) == one.hours
    assert hours_of(found, "against") == other.hours
    for alone, examples in (
        (one.places - other.places, found.only_filter),
        (other.places - one.places, found.only_against),
    ):
        named = {place for example in examples for place in positions.parse(example.position).items()}
        assert len(named) == limits.BACKTEST_EXAMPLES_MAX
        assert named <= alone


def test_small_pages_add_up_to_the_same(
    backtests: Backtests, orders: list[StoredOrder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that end within chunks, after every single event."""
    asked = {"filter": LARGE, "against": PAID, "to": "0:40,1:30"}
    whole, _ = run(backtests, **asked)
    monkeypatch.setattr(counting, "SCAN_TURN_S", 0.0)
    monkeypatch.setattr(scan_pages, "SCAN_REQUEST_TURN_S", 0.0)
    found, count = run(backtests, **asked)
    assert count > 20
    assert found == msgspec.structs.replace(whole, chunks_read=found.chunks_read, chunks_skipped=found.chunks_skipped)


def test_from_and_to(backtests: Backtests, orders: list[StoredOrder]) -> None:
    def between(first: int, end: int) -> int:
        return sum(first <= (one.stored_us - START_US) // HOUR_US < end for one in orders)

    assert run(backtests, filter="true", from_="2026-01-01T03:00:00Z")[0].taken == between(3, 99)
    assert run(backtests, filter="true", from_="2026-01-01T03:00:00Z", to="2026-01-01T05:00:00Z")[0].taken == between(
        3, 5
    )
    assert run(backtests, filter="true", from_="2026-01-01T05:00:00Z", to="2026-01-01T03:00:00Z")[0].taken == 0
    assert run(backtests, filter="true", from_="next")[0].stored == 0
    places = {(one.partition, one.offset) for one in orders}
    expected = sum(offset >= 100 if partition == 0 else offset >= 7 for partition, offset in places)
    assert run(backtests, filter="true", from_="0:100,1:7")[0].taken == expected


def test_a_sample_estimates(backtests: Backtests, orders: list[StoredOrder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "BACKTEST_WINDOW_EVENTS", 32)
    plain = len(PlainCount(orders, LARGE).places)
    found, _ = run(backtests, filter=LARGE, share=0.25)
    assert found.sampled
    assert 0.15 < found.scanned / found.stored < 0.35
    assert abs(found.taken - plain) < 0.25 * plain
    within = found.intervals["taken"]
    assert within.low <= plain <= within.high
    assert 0.02 * plain < within.high - within.low < plain
    assert found.intervals.keys() == {"taken", "errors"}
    again, _ = run(backtests, filter=LARGE, share=0.25)
    assert (again.taken, again.hours, again.triggers) == (found.taken, found.hours, found.triggers)


def test_a_sample_has_the_same_margin_however_it_is_asked_for(
    backtests: Backtests, orders: list[StoredOrder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one page, in pages that end within windows, and in pages that are full."""
    monkeypatch.setattr(counting, "BACKTEST_WINDOW_EVENTS", 32)
    asked: dict[str, Any] = {"filter": LARGE, "against": PAID, "share": 0.25, "to": "0:1200,1:1200"}
    whole, _ = run(backtests, **asked)
    assert whole.intervals.keys() == {"taken", "errors", "against", "againstErrors", "both"}
    monkeypatch.setattr(counting, "BACKTEST_WINDOWS_MAX", 3)
    full, count = run(backtests, **asked)
    assert count > 10
    monkeypatch.setattr(counting, "SCAN_TURN_S", 0.0)
    monkeypatch.setattr(scan_pages, "SCAN_REQUEST_TURN_S", 0.0)
    parts, _ = run(backtests, **asked)
    assert full.intervals == parts.intervals == whole.intervals


def test_all_events_have_no_margin(backtests: Backtests, orders: list[StoredOrder]) -> None:
    assert run(backtests, filter=LARGE)[0].intervals == {}


def test_windows_are_spread_and_a_page_may_end_anywhere() -> None:
    whole = list(windows(100, 100, 1_000_000, 0.01, 3))
    assert all(begin < behind <= begin + limits.BACKTEST_WINDOW_EVENTS for begin, behind in whole)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(whole))
    seen = sum(behind - begin for begin, behind in whole)
    assert 0.009 < seen / 999_900 < 0.011
    begin, behind = whole[4]
    assert list(windows(100, behind, 1_000_000, 0.01, 3)) == whole[5:]
    assert list(windows(100, begin + 5, 1_000_000, 0.01, 3)) == [(begin + 5, behind), *whole[5:]]
    assert list(windows(100, begin - 1, 1_000_000, 0.01, 3)) == whole[4:]
    assert list(windows(0, 40, 90, 1, 0)) == [(40, 90)]
    assert list(windows(0, 90, 90, 1, 0)) == []


def test_many_triggers_are_compared_with_fewer_events(
    backtests: Backtests, orders: list[StoredOrder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "BACKTEST_EVALUATIONS_MAX", 3 * 60)
    found, _ = run(backtests, filter=LARGE)
    assert found.triggers_estimated
    both = {one.name: one.both for one in found.triggers}
    exact = len(PlainCount(orders, LARGE).places & PlainCount(orders, TRIGGERS["large"]).places)
    assert both["default/none"] == 0
    assert abs(both["default/large"] - exact) < 0.5 * exact
    monkeypatch.setattr(backtest_module, "BACKTEST_TRIGGERS_MAX", 2)
    found, _ = run(backtests, filter=LARGE, against=PAID)
    assert {one.name for one in found.triggers} == {"default/large", "default/none"}
    assert found.triggers_left_out == 1
    assert run(backtests, filter=LARGE, triggers=False)[0].triggers == []


def test_hours_are_bounded(backtests: Backtests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate_api.backtest.BACKTEST_HOURS_MAX", 3)
    found, _ = run(backtests, filter="true")
    assert len(found.hours) == 3
    assert found.hours_left_out >= 7
    assert found.taken > sum(one.taken for one in found.hours)


def test_what_makes_no_sense_is_refused(backtests: Backtests) -> None:
    def refused(kind: type[Exception], match: str, broker: str = "default/default", **asked: Any) -> None:
        with pytest.raises(kind, match=match):
            asyncio.run(backtests.page(broker, BacktestRequest(**asked)))

    refused(InvalidInputError, "no filter")
    refused(FilterError, "filter", filter="ce.type ==")
    refused(FilterError, "against", filter="true", against={"nosuch": 1})
    refused(InvalidInputError, "share 0.0", filter="true", share=0.0)
    refused(InvalidInputError, "share nan", filter="true", share=float("nan"))
    refused(InvalidInputError, "share 1.5", filter="true", share=1.5)
    refused(ObjectNotFoundError, "nosuch", broker="default/nosuch", filter="true")
    refused(PositionError, "no place", filter="true", from_="yesterday")
    for place in ({"from_": "0:999999"}, {"to": "1:999999"}):
        refused(PositionError, "behind the end", filter="true", **place)
    for token in ("x", "filter", "filter/0:1,1:1/0:1,1:1", "other/0:1,1:1/0:1,1:1/0:1,1:1", "filter/0:1/0:1/0:1",
                  "filter/0:1,1:1/0:0,1:1/0:2,1:2", "filter/0:1,1:1/0:1,1:1/0:999999,1:1"):  # fmt: skip
        refused(PositionError, "position|next|end", filter="true", next=token)
    refused(InvalidInputError, "next belongs", filter="true", next="against/0:1,1:1/0:1,1:1/0:2,1:2")


def test_more_than_a_few_at_once_are_told_to_wait(backtests: Backtests) -> None:
    async def work() -> list[object]:
        asked = [
            backtests.page("default/default", BacktestRequest(filter="true")) for _ in range(limits.BACKTESTS_MAX + 2)
        ]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    answers = asyncio.run(work())
    assert sum(isinstance(one, PlacesTakenError) for one in answers) == 3
    assert sum(isinstance(one, BacktestPage) for one in answers) == limits.BACKTESTS_MAX - 1, (
        "one namespace alone leaves room"
    )


@pytest.mark.usefixtures("unhurried")
def test_over_http(backtests: Backtests, orders: list[StoredOrder], tmp_path: Path) -> None:
    app = Starlette(routes=[*backtests.routes()], exception_handlers=ERROR_HANDLERS)
    path = "/apis/headgate.dev/v1/namespaces/default/brokers/default/backtest"

    async def post(body: bytes, where: str = path) -> tuple[int, dict[str, Any]]:
        headers = [(b"content-type", b"application/json")]
        async with requested(tmp_path / "socket", b"POST", where.encode(), body, headers) as response:
            status = await response.head()
            return status, json.loads(b"".join([piece async for piece in response.pieces()]))

    async def work() -> None:
        async with answering(app, tmp_path / "socket"):
            status, page = await post(json.dumps({"filter": PAID, "from": "earliest"}).encode())
            assert status == 200
            assert (page["apiVersion"], page["kind"], page["of"]) == ("headgate.dev/v1", "FilterBacktest", "filter")
            assert page["taken"] == len(PlainCount(orders, PAID).places)
            assert page["next"] == ""
            assert (await post(b'{"filter": "true", "nosuch": 1}'))[0] == 400
            assert (await post(b"{"))[0] == 400
            assert (await post(b'{"filter": "ce.type =="}'))[0] == 422
            assert (await post(b'{"filter": "true"}', path.replace("brokers/default", "brokers/nosuch")))[0] == 404

    asyncio.run(work())


@pytest.mark.usefixtures("unhurried")
def test_the_reader_counts_the_same(data: Path, orders: list[StoredOrder], tmp_path: Path) -> None:
    at, end = {0: 0, 1: 0}, {0: 500, 1: 900}
    with closing(Store.open(data / "control.db")) as store:
        identity = store.snapshot().brokers["default/default"]
    asked = CountRequest(identity, filter_value_rule("type"), PAID, LARGE, ("true",), at, at, end)

    async def work() -> tuple[CountPage, CountPage]:
        with ThreadPoolExecutor(1) as threads:
            here = LogScanner(ChunkLog(LogDirectory(data / "log", "stop")), threads)
            app = Starlette(routes=[count_route(here)], exception_handlers=ERROR_HANDLERS)
            async with answering(app, tmp_path / "reader"):
                return await here.count_page(asked), await ReaderScanner(tmp_path / "reader").count_page(asked)

    here, there = asyncio.run(work())
    assert here == there
    assert here.taken == here.compared == sum(here.hours.values()) == here.others[0] > 100


command = partial(headgate, "filter", "backtest")


def test_the_command_reads_a_data_directory(data: Path, orders: list[StoredOrder], tmp_path: Path) -> None:
    one, other = PlainCount(orders, PAID), PlainCount(orders, LARGE)
    words = [PAID, "--against", json.dumps({"cel": LARGE}), "--data", str(data), "--json"]
    done = subprocess.run([HEADGATE, "filter", "backtest", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["broker"] == "default/default"
    assert (found["taken"], found["against"], found["both"]) == (
        len(one.places),
        len(other.places),
        len(one.places & other.places),
    )
    shown = command(PAID, "--data", str(data))
    assert shown.exit_code == 0, shown.stderr
    assert f"taken    {len(one.places):,}" in shown.stdout
    assert "2026-01-01T09:00Z" in shown.stdout
    assert re.search(rf"^default/paid +{len(one.places):,} +100%$", shown.stdout, re.MULTILINE)
    assert shown.stderr == ""
    sampled = command(PAID, "--data", str(data), "--sample", "0.01")
    assert "sampled  too few windows for a margin of error" in sampled.stdout
    missing = command(PAID, "--data", str(tmp_path))
    assert missing.exit_code == 1
    assert "is no data directory of Headgate" in missing.stderr
    wrong = command("ce.type ==", "--data", str(data))
    assert wrong.exit_code == 1
    assert "error:" in wrong.stderr
    assert not (tmp_path / "control.db").exists()


def test_a_count_that_takes_too_long_says_how_far_it_came(
    data: Path, orders: list[StoredOrder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headgate_cli import backtest as command_module

    monkeypatch.setattr(counting, "SCAN_TURN_S", 0.0)
    monkeypatch.setattr(scan_pages, "SCAN_REQUEST_TURN_S", 0.0)
    monkeypatch.setattr(command_module, "BACKTEST_S_MAX", 0.0)
    command_module.backtest("true", data=data)
    printed = capsys.readouterr()
    assert "stopped  before the end" in printed.err
    assert "taken    " in printed.out
