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

SETUPS = {
    "none": "no filters",
    "3": "3 filters a broker",
    "15": "15 filters a broker",
}
RATES = ("events_per_s", "acked_per_s")
P50 = ("deliver_p50_ms", "p50_ms")
P99 = ("deliver_p99_ms", "p99_ms")
"""What peers call their figures."""


def rows_of(section: str, name: str, found: dict[str, Any]) -> Iterable[Table]:
    """The tables of one run."""
    match section:
        case "setups":
            yield loads_table(name, found)
            yield work_table(name, found)
            yield neighbour_table({name: found})
        case "curve":
            yield curve_table(found)
        case "peers":
            yield peers_table({name: found}, None)
        case _:
            yield peers_table({}, found)


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


def peers_table(peers: dict[str, dict[str, Any]], ours: dict[str, Any] | None) -> Table:
    """A line for each object that a peer printed, beside ours."""
    head = ["system", "settings", "events/s", "p50 ms", "p99 ms"]
    rows = []
    if ours:
        settings = f"triggers {ours['triggers']}, connections {ours['connections']}, latency at {ours['rate']:g}/s"
        times = [_cell(ours[key]) for key in ("deliver_p50_ms", "deliver_p99_ms")]
        rows.append(["Headgate, durable", settings, _cell(ours["delivered_per_s"]), *times])
    for name, found in peers.items():
        for said in found["said"]:
            rest = {
                key: value for key, value in said.items() if key not in ("peer", *RATES, *P50, *P99) and value != ""
            }
            settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in rest.items())
            rows.append([name, settings, *(_cell(_first(said, keys)) for keys in (RATES, P50, P99))])
    return "Headgate and its peers", head, rows


def _first(said: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((float(said[key]) for key in keys if said.get(key) is not None), None)
