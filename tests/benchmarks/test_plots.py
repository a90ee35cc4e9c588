"""Plots are SVG that a browser takes: every value has its place, and no word of a name becomes markup."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from benchmarks.published.plots import BOTTOM, HEIGHT, TOP, Series, bars, lines, number_text

SVG = "{http://www.w3.org/2000/svg}"


def words(root: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def test_a_bar_is_as_high_as_its_value() -> None:
    root = ElementTree.fromstring(
        bars("Speed", ["1 %", "10 %"], [Series("a", [100, 50]), Series("b", [None, 25])], "/s")
    )
    heights = [float(one.attrib["height"]) for one in root.iter(f"{SVG}rect") if one.attrib["width"] != "10"]
    whole = HEIGHT - BOTTOM - TOP
    assert heights == pytest.approx([whole, whole / 2, whole / 4], abs=0.1)
    assert {"Speed", "1 %", "10 %", "a", "b", "100", "50", "25", "/s"} <= set(words(root))


def test_a_line_has_a_point_for_each_value_and_factors_are_equally_far() -> None:
    made = lines(
        "Cost",
        [100, 1_000, 10_000],
        [Series("front", [10, 20, None]), Series("all", [40, 50, 50])],
        "us",
        "filters",
        log=True,
    )
    drawn = list(ElementTree.fromstring(made).iter(f"{SVG}polyline"))
    points = [[tuple(map(float, point.split(","))) for point in one.attrib["points"].split()] for one in drawn]
    assert [len(one) for one in points] == [2, 3]
    (x1, y1), (x2, y2), (x3, _) = points[1]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 > y2  # SVG counts from the top


def test_a_mark_stands_at_its_time() -> None:
    made = lines("Cores", [1, 2, 4], [Series("front", [1, 1, 1])], "cores", "s", marks=[(2, "load"), (4, "end")])
    root = ElementTree.fromstring(made)
    (drawn,) = root.iter(f"{SVG}polyline")
    at = [float(point.split(",")[0]) for point in drawn.attrib["points"].split()]
    dashed = [float(one.attrib["x1"]) for one in root.iter(f"{SVG}line") if "stroke-dasharray" in one.attrib]
    assert dashed == [at[1], at[2]]
    assert {"load", "end"} <= set(words(root))


def test_names_are_text() -> None:
    made = bars('A "b" <c>', ["<x>"], [Series("a & b", [1])], "<1/s>")
    assert {'A "b" <c>', "<x>", "a & b", "<1/s>"} <= set(words(ElementTree.fromstring(made)))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.451, "0.45"), (3, "3"), (12.34, "12.3"), (123.4, "123"), (12345, "12,345")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text
