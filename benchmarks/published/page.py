"""The page and its plots, made of the results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.published import results
from benchmarks.published.plots import Series, bars, lines
from benchmarks.published.prose import BUSY, CANNOT, CURVE, HEAD, MATCHERS, NEIGHBOUR, SYSTEMS
from benchmarks.published.tables import (
    SETUPS,
    Table,
    curve_table,
    loads_table,
    neighbour_table,
    peers_table,
    work_table,
)
from benchmarks.shards import ROLES

IMAGES = "published"
"""The folder of the plots, beside the page."""
TARGET = 1.10
"""The cost per event with the most filters, in times of that with the fewest."""


def write(page: Path) -> None:
    """Writes the page and its plots from the results beside it."""
    made = {
        page.parent / name: text for name, text in render(results.read(page.with_suffix(".json")), page.name).items()
    }
    for file, text in made.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for file in (page.parent / IMAGES).glob("*.svg"):
        if file not in made:
            file.unlink()


def render(found: results.Section, page: str) -> dict[str, str]:
    """All files by their names, seen from the page's folder."""
    plots: dict[str, str] = {}
    parts = [HEAD]
    setups = {name: found["setups"][name] for name in SETUPS if name in found.get("setups", {})}
    if setups:
        parts += ["## Throughput, latency and cost by load", *_setups(setups, plots)]
    if "curve" in found:
        for one in found["curve"].values():
            parts += ["## Cost by the number of filters", *_curve(one, plots)]
    parts += ["## Peers", *_peers(found.get("peers", {}))]
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    return {page: text} | {f"{IMAGES}/{name}.svg": plot for name, plot in plots.items()}


def _setups(setups: dict[str, Any], plots: dict[str, str]) -> list[str]:
    loads = [f"{one['percent']:g} %" for one in next(iter(setups.values()))["loads"]]

    def by_setup(key: str) -> list[Series]:
        return [Series(SETUPS[name], [load.get(key) for load in one["loads"]]) for name, one in setups.items()]

    plots["stored"] = bars("Events stored a second, by the share that matches", loads, by_setup("stored_per_s"), "1/s")
    plots["latency"] = bars("From due to delivered, p50, by the share that matches", loads, by_setup("p50_ms"), "ms")
    parts = [_image("stored", "Events stored a second"), _image("latency", "Latency")]
    for name, one in setups.items():
        parts += [f"### {SETUPS[name].capitalize()}", _where(one["run"])]
        parts.append(f"Brokers and triggers were made by the API and Ready within {one['loaded_s']:g} s.")
        parts += [_table(loads_table(name, one)), _table(work_table(name, one))]
        course = one["course"]
        if course["samples"]:
            plots[f"course-{name}"] = lines(
                f"Cores in use, {SETUPS[name]}",
                [sample[0] for sample in course["samples"]],
                [
                    Series(role, [sample[1 + index] for sample in course["samples"]])
                    for index, role in enumerate(course["roles"])
                ],
                "cores",
                "seconds",
                marks=[(at, what) for at, what in course["marks"]],
            )
            parts.append(_image(f"course-{name}", "Processor time by process over the run"))
    times = [
        Series(f"{when}, {quantile}", [one["neighbour"][when][f"{quantile}_ms"] for one in setups.values()])
        for when in ("alone", "beside")
        for quantile in ("p50", "p99")
    ]
    plots["neighbour"] = bars(
        "Quiet brokers, alone and beside a noisy one", [SETUPS[name] for name in setups], times, "ms"
    )
    parts += [
        "### A noisy neighbour",
        NEIGHBOUR,
        _table(neighbour_table(setups)),
        _image("neighbour", "Latency of quiet brokers"),
    ]
    return parts


def _curve(found: dict[str, Any], plots: dict[str, str]) -> list[str]:
    points = found["points"]
    first = points[0]
    form = ("fronts", "dispatchers", "partitions")
    line = [one for one in points if all(one[key] == first[key] for key in form)]
    if len(line) > 1:
        series = [Series(role, [one["us_per_event"][role] for one in line]) for role in ROLES]
        series.append(Series("all", [one["total_us"] for one in line]))
        plots["curve"] = lines(
            *("Processor time for an event by filters that do not match", [one["filters"] for one in line], series),
            *("us", "filters"),
            log=True,
        )
    ratio = line[-1]["total_us"] / line[0]["total_us"]
    return [
        CURVE,
        _where(found["run"]),
        _table(curve_table(found)),
        *([_image("curve", "Cost per event by the number of filters")] if len(line) > 1 else []),
        f"With {line[-1]['filters']:,} filters an event costs {ratio:.2f} times what it costs with"
        f" {line[0]['filters']:,} ({'within' if ratio <= TARGET else 'not within'} the goal).",
    ]


def _peers(peers: dict[str, Any]) -> list[str]:
    parts = []
    for about, kind in ((MATCHERS, "matchers"), (SYSTEMS, "systems")):
        parts.append(about)
        for name, one in peers.items():
            if name.startswith(kind):
                parts += [_table(peers_table(one)), _where(one["run"])]
    return [*parts, CANNOT]


def _where(run: dict[str, Any]) -> str:
    """One line: the command, the machine, the date."""
    busy = f"; {BUSY}" if run["load"] > run["cores"] / 2 else ""
    return (
        f"`{run['command']}`, {run['date']}, {run['cores']} cores ({run['model']}), {run['kernel']},"
        f" Headgate {run['version']}, load average {run['load']:g} before it{busy}."
    )


def _table(table: Table) -> str:
    title, head, rows = table
    cells = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return f"{title}:\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _image(name: str, text: str) -> str:
    return f"![{text}]({IMAGES}/{name}.svg)"
