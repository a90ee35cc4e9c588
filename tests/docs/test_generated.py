"""The generated pages are what the code would write, and none of them leaves anything out."""

from __future__ import annotations

import re

from scripts.pages import cli, dialects
from scripts.pages import limits as limits_page
from scripts.pages.all import stale

from headgate.filter.dialects import _OURS
from headgate.filter.dialects.cesql.values import FUNCTIONS
from headgate.filter.dialects.eventpattern.rules import _OPERATORS
from headgate.filter.dialects.pulsar.tree import Operator
from headgate.filter.dialects.subscriptions import NAMES
from headgate_api import limits


def test_the_pages_are_up_to_date() -> None:
    assert stale() == [], "make pages writes them anew"


def test_no_operator_is_missing() -> None:
    shown = dialects.OPERATORS
    assert shown.keys() | {"cel"} == {*_OURS, *NAMES}
    assert shown["pulsar"].keys() >= set(Operator)
    assert shown["cesql"].keys() >= FUNCTIONS.keys()
    examples = str(shown["eventPattern"])
    assert [operator for operator in (*_OPERATORS, "$or") if f"'{operator}'" not in examples] == []


def test_no_limit_is_missing() -> None:
    names = {name for name in vars(limits) if name.isupper()}
    assert set(re.findall(r"^\| `(\w+)` \|", limits_page.page(), re.MULTILINE)) == names


def test_exit_statuses_are_of_commands_that_exist() -> None:
    assert cli.EXITS.keys() <= cli.commands().keys()


def test_every_option_has_a_meaning() -> None:
    assert re.findall(r"^\| `.*\| *\|$", cli.page(), re.MULTILINE) == []
