"""Small SVG plots, bars and lines: transparent, in greys and colours that stand out on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#3f8fc4", "#d9822b", "#4fa36b", "#b0609f", "#c2504c", "#8f8f3a", "#6f7fd0", "#8a8a8a")
GREY = "#808080"
WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 40, 56
TICKS = 5
LABEL_PX = 8


@dataclass(frozen=True)
class Series:
    """One colour.

    Attributes:
        name: In the legend.
        values: In the order of the groups or of the places on the x axis; None is left out.
    """

    name: str
    values: Sequence[float | None]


def bars(title: str, groups: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Groups of bars; each bar has its figure above it."""
    top = _nice_top(value for one in series for value in one.values)
    y = _scale(0, top, HEIGHT - BOTTOM, TOP)
    parts = [*_frame(title, series, unit, top, y)]
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    wide = slot * 0.8 / max(1, len(series))
    for number, group in enumerate(groups):
        start = LEFT + number * slot + slot * 0.1
        parts.append(_text(start + slot * 0.4, HEIGHT - BOTTOM + 16, group, "middle"))
        for index, one in enumerate(series):
            if (value := one.values[number]) is None:
                continue
            left, height = start + index * wide, HEIGHT - BOTTOM - y(value)
            colour = COLOURS[index % len(COLOURS)]
            parts.append(
                f'<rect x="{left:.1f}" y="{y(value):.1f}" width="{wide * 0.92:.1f}" height="{height:.1f}"'
                f' fill="{colour}"/>'
            )
            parts.append(_text(left + wide * 0.46, y(value) - 4, number_text(value), "middle", 9))
    return _svg(title, parts)


def lines(
    title: str,
    x: Sequence[float],
    series: Sequence[Series],
    unit: str,
    x_unit: str,
    *,
    log: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines over x.

    Args:
        title: Above the plot.
        x: Where the values of each series stand.
        series: The lines.
        unit: Of the values.
        x_unit: Of the x axis.
        log: Whether x grows by factors; then each place has a dot and its number.
        marks: Places on x with a word, at a thin line from top to bottom.
    """
    top = _nice_top(value for one in series for value in one.values)
    y = _scale(0, top, HEIGHT - BOTTOM, TOP)
    place: Callable[[float], float] = math.log10 if log else float
    x_of = _scale(place(min(x)) if log else 0, place(max(x)), LEFT + 4, WIDTH - RIGHT - 20)
    parts = [*_frame(title, series, unit, top, y)]
    ticks = list(x) if log else [_nice_top([max(x)]) * part / TICKS for part in range(TICKS + 1)]
    parts += [
        _text(x_of(place(tick)), HEIGHT - BOTTOM + 16, number_text(tick), "middle") for tick in ticks if tick <= max(x)
    ]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - BOTTOM + 30, x_unit, "end"))
    for at, word in marks:
        left = x_of(place(at))
        parts.append(_line(left, TOP, left, HEIGHT - BOTTOM, dash="2 3"))
        parts.append(
            f'<text x="{left + 9:.1f}" y="{TOP + 4}" font-size="9" fill="{GREY}" text-anchor="start"'
            f' transform="rotate(90 {left + 3:.1f} {TOP + 4})">{escape(word)}</text>'
        )
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        points = [(x_of(place(at)), y(value)) for at, value in zip(x, one.values, strict=True) if value is not None]
        joined = " ".join(f"{left:.1f},{down:.1f}" for left, down in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if log:
            parts += [f'<circle cx="{left:.1f}" cy="{down:.1f}" r="3" fill="{colour}"/>' for left, down in points]
    return _svg(title, parts)


def number_text(value: float) -> str:
    """Short: 1,234; 12.3; 0.45."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _nice_top(values: object) -> float:
    """1, 2, 2.5 or 5 times a power of ten, not below the largest value."""
    largest = max((value for value in values if value is not None), default=0.0)  # type: ignore[attr-defined]
    if largest <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= largest)


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: first + (value - low) / span * (last - first)


def _frame(title: str, series: Sequence[Series], unit: str, top: float, y: Callable[[float], float]) -> list[str]:
    parts = [_text(LEFT, 16, title, "start", 13)]
    for part in range(TICKS + 1):
        value = top * part / TICKS
        parts.append(_line(LEFT, y(value), WIDTH - RIGHT, y(value)))
        parts.append(_text(LEFT - 6, y(value) + 4, number_text(value), "end"))
    parts.append(_text(LEFT - 6, TOP - 10, unit, "end"))
    left = float(LEFT)
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<rect x="{left:.0f}" y="{HEIGHT - 16}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(left + 14, HEIGHT - 7, one.name, "start"))
        left += 14 + LABEL_PX * len(one.name) + 12
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GREY}" stroke-opacity="0.4"{dashes}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{GREY}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' font-family="sans-serif" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">'
    )
    return "\n".join([head, *parts, "</svg>", ""])
