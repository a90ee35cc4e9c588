"""The commands that a page shows, and what it says that they print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

OUTPUT = "Output"
_FENCE = re.compile(r'^```(?:(sh)(?: title="([^"]+)")?|text title="([^"]+)")\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_UNSTABLE = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"partition \d+, offset \d+"), "PLACE"),
    (re.compile(r"chunk \d+ to \d+"), "CHUNK"),
    (re.compile(r"position \d+"), "POSITION"),
    (re.compile(r"generation \d+"), "GENERATION"),
    (re.compile(r"^\d+:\d+ ", re.MULTILINE), "PLACE "),
    (re.compile(r"epoch +\d+"), "EPOCH"),
    (re.compile(r"\b\d+(s|m)\b"), "AGE"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b"), "UUID"),
)


@dataclass(frozen=True)
class Step:
    """A fenced block: commands (`is_command`) for the terminal `title`, or what stands in it afterwards."""

    is_command: bool
    title: str
    text: str


def steps(page: Path) -> list[Step]:
    """The commands and outputs of a page, in order."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Step(language == "sh", typed or shown, text) for language, typed, shown, text in found]


def stable(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: times, ages, places, widths of columns."""
    for pattern, name in _UNSTABLE:
        text = pattern.sub(name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]
