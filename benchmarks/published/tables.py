"""The findings as tables, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.table

from benchmarks.published.plots import number_text
from benchmarks.shards import ROLES
from benchmarks.tables import print_whole

Table = tuple[str, list[str], list[list[str]]]
"""Title, headings, rows."""

OURS = "Headgate"
"""How the programs of peers call us."""
SETUPS = {
    "none": "no filters",
    "3": "3 filters a broker",
    "15": "15 filters a broker",
}


def rows_of(section: str, name: str, found: dict[str, Any]) -> Iterable[Table]:
    """The tables of one run."""
    match section:
        case "setups":
            yield loads_table(name, found)
            yield work_table(name, found)
            yield neighbour_table({name: found})
        case "curve":
            yield curve_table(found)
        case _:
            yield peers_table(found)


def show(section: str, name: str, found: dict[str, Any]) -> None:
    """Prints one finding."""
    for title, head, rows in rows_of(section, name, found):
        table = rich.table.Table(title=title)
        for number, text in enumerate(head):
            table.add_column(text, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        print_whole(table)


def setup_title(name: str, found: dict[str, Any]) -> str:
    return f"{found['brokers']:,} brokers, {SETUPS[name]}: {found['filters']:,} filters"


def _cell(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _loads(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    single = [(f"{one['percent']:g} % match", one) for one in found["loads"]]
    return [*single, (f"half in batches, {found['mixed']['percent']:g} % match", found["mixed"])]


def loads_table(name: str, found: dict[str, Any]) -> Table:
    """Events a second, and how long they take."""
    head = [
        *("load", "stored/s", "delivered/s", "behind s", "to the 202: p50 ms", "p99 ms"),
        *("steady rate", "deliveries", "to the subscriber: p50 ms", "p99 ms"),
    ]
    keys = (
        *("stored_per_s", "delivered_per_s", "behind_s", "stored_p50_ms", "stored_p99_ms"),
        *("rate", "deliveries", "p50_ms", "p99_ms"),
    )
    rows = [[load, *(_cell(one.get(key)) for key in keys)] for load, one in _loads(found)]
    return setup_title(name, found), head, rows


def work_table(name: str, found: dict[str, Any]) -> Table:
    """What the closed loop takes of the machine."""
    head = [
        *("load", *(f"{role} us" for role in ROLES), "all us", "written B"),
        *("collections", "pauses ms", "longest ms", "allocated B"),
    ]
    rows = []
    for load, one in _loads(found):
        us, jvm = one["us_per_event"], one.get("jvm", {})
        written = sum(one["written_bytes_per_event"].values())
        rows.append(
            [
                *(load, *(_cell(us[role]) for role in ROLES), _cell(sum(us.values())), _cell(written)),
                *(_cell(jvm.get(key)) for key in ("collections", "total_ms", "longest_ms")),
                _cell(jvm.get("allocated_bytes_per_event")),
            ]
        )
    return f"{setup_title(name, found)}; processor time, bytes written and allocated for an event", head, rows


def neighbour_table(setups: dict[str, dict[str, Any]]) -> Table:
    """Quiet brokers, alone and beside a noisy one."""
    head = ["setup", "quiet events/s", "noisy events/s", "alone: p50 ms", "p99 ms", "beside it: p50 ms", "p99 ms"]
    rows = []
    for name, found in setups.items():
        one = found["neighbour"]
        times = [_cell(one[when][key]) for when in ("alone", "beside") for key in ("p50_ms", "p99_ms")]
        rows.append([SETUPS[name], _cell(one["rate"]), _cell(one["noisy_sent_per_s"]), *times])
    return "Brokers without filters, alone and beside a noisy one", head, rows


def curve_table(found: dict[str, Any]) -> Table:
    """Processor time per event by the number of filters, and by processes."""
    head = [
        *("filters that do not match", "fronts", "dispatchers", "matcher threads"),
        *(f"{role} us" for role in ROLES),
        *("all us", "idle ms/s"),
    ]
    rows = [
        [
            *(f"{one['filters']:,}", str(one["fronts"]), str(one["dispatchers"]), str(one["partitions"])),
            *(_cell(one["us_per_event"][role]) for role in ROLES),
            *(_cell(one["total_us"]), _cell(one["idle_ms_per_s"])),
        ]
        for one in found["points"]
    ]
    return "Processor time for an event, microseconds", head, rows


def peers_table(found: dict[str, Any]) -> Table:
    """Headgate and its peers: matchers, or whole systems."""
    return _matchers(found) if "filters" in found else _systems(found)


def _matchers(found: dict[str, Any]) -> Table:
    head = [
        "matcher",
        "events/s",
        "from to",
        "processor us an event",
        "times Headgate's events/s",
        "built in s",
        "wrong",
    ]
    ours = found["rows"][0]
    rows = [
        [
            *(one["title"], f"{one['events_per_s']:,}", _from_to(one["events_per_s_from_to"])),
            *(number_text(one["processor_us"]), f"{one['events_per_s'] / ours['events_per_s']:.3f}"),
            number_text(one["build_s"]),
            f"{one['wrong']:+,}" if one["wrong"] else "0",
        ]
        for one in found["rows"]
    ]
    matches = number_text(found["matches_per_event"])
    title = f"{found['filters']:,} filters, {matches} matches an event, one core, median of {found['rounds']} rounds"
    return title, head, rows


def _systems(found: dict[str, Any]) -> Table:
    head = [
        *(
            "system",
            "producers",
            "delivered/s",
            "from to",
            "times Headgate's",
            "to the acknowledgement: p50 ms",
            "p99 ms",
        ),
        *("server us an event", "clients us", f"to the consumer at {found['rate']:g}/s: p50 ms", "p99 ms"),
    ]
    ours = {one["producers"]: one["delivered_per_s"] for one in found["rows"] if one["title"] == OURS}
    rows = [
        [
            *(one["title"], str(one["producers"]), f"{one['delivered_per_s']:,.0f}"),
            *(_from_to(one["delivered_per_s_from_to"]), f"{one['delivered_per_s'] / ours[one['producers']]:.3f}"),
            *(_cell(one[key]) for key in ("ack_p50_ms", "ack_p99_ms", "server_us", "clients_us")),
            *(_cell(one[key]) for key in ("deliver_p50_ms", "deliver_p99_ms")),
        ]
        for one in found["rows"]
    ]
    title = f"{found['consumers']} consumers with a filter each, one match an event, median of {found['rounds']} rounds"
    return title, head, rows


def _from_to(values: list[float]) -> str:
    return f"{values[0]:,} to {values[1]:,}"
