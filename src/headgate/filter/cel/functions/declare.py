"""Declaration of a CEL function: name, static types, and the Python that computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FunctionError(ValueError):
    """The call's value is a CEL error; the text is shown to people."""


class CelType(StrEnum):
    """Static types of parameters and results; DYN is checked by each call."""

    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"  # of anything
    DYN = "dyn"


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function; an argument of another type is cel-cpp's "no matching overload".

    `compute` gets plain Python values (lists and maps converted), and raises FunctionError. It keeps no state, is
    linear in the size of its arguments or bounded by a named limit, and never returns a NUL or a lone surrogate.
    """

    parameters: tuple[CelType, ...]
    result: CelType
    compute: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A function and its overloads; `name` holds one dot: `<subject>.<function>`."""

    name: str
    overloads: tuple[Overload, ...]
