"""docs/reference/dialects.md is what its generator writes, and the generator leaves no operator out."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from headgate.filter.dialects import _OURS
from headgate.filter.dialects.cesql.functions import FUNCTIONS
from headgate.filter.dialects.eventpattern.rules import _OPERATORS
from headgate.filter.dialects.pulsar.tree import Operator
from headgate.filter.dialects.subscriptions import NAMES
from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    specification = importlib.util.spec_from_file_location("dialects_page", REPOSITORY / "scripts/dialects_page.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator: ModuleType) -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "run python scripts/dialects_page.py"


def test_no_operator_is_missing(generator: ModuleType) -> None:
    shown = generator.OPERATORS
    assert shown.keys() | {"cel"} == {*_OURS, *NAMES}
    assert shown["pulsar"].keys() >= set(Operator)
    assert shown["cesql"].keys() >= FUNCTIONS.keys()
    examples = str(shown["eventPattern"])
    assert [operator for operator in (*_OPERATORS, "$or") if f"'{operator}'" not in examples] == []
