"""The file of results: sections that runs replace one by one, each with its command, its machine and its date."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import headgate

SECTIONS = ("setups", "peers", "curve")

Section = dict[str, Any]
Tell = Callable[[str], None]


def teller() -> Tell:
    """Tells people on standard error, with the seconds since now."""
    started = time.monotonic()
    return lambda text: print(f"{time.monotonic() - started:6.0f} s  {text}", file=sys.stderr, flush=True)


def flags_of(parser: argparse.ArgumentParser, given: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """The flags of these names that are no defaults, as they are written."""
    found = []
    for name in names:
        value = getattr(given, name)
        if value != parser.get_default(name):
            words = value if isinstance(value, list) else [value]
            found += [f"--{name.replace('_', '-')}", *(one if isinstance(one, str) else f"{one:g}" for one in words)]
    return found


def run_record(program: str, flags: list[str]) -> Section:
    """Who measured, where and when."""
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.+)", info)
    return {
        "command": shlex.join(["python", "-m", f"benchmarks.{program}", *flags]),
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "model": model[1] if model else platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "version": headgate.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def read(file: Path) -> Section:
    """All sections; none where there is no file."""
    return json.loads(file.read_text()) if file.exists() else {}  # type: ignore[no-any-return]


def put(file: Path, section: str, name: str, found: Section) -> None:
    """Puts one run's findings in the place of those of the same name.

    Args:
        file: The results.
        section: One of SECTIONS.
        name: What was measured.
        found: JSON.
    """
    kept = read(file)
    kept.setdefault(section, {})[name] = found
    ordered = {one: kept[one] for one in SECTIONS if one in kept}
    file.write_text(_text(ordered) + "\n")


def _text(value: object) -> str:
    """Indented, but a list of numbers on one line: the samples are many."""
    text = json.dumps(value, indent=1)
    return re.sub(r"\[\s*((?:-?[\d.e]+,\s*)*-?[\d.e]+)\s*\]", lambda found: f"[{' '.join(found[1].split())}]", text)
