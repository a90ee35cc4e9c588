"""How is a read of a place named and described? What the readers of attributes, extensions and data share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from headgate.filter.plan import Place


class Want(Flag):
    """What is to be known of a place."""

    TEXT = auto()  # the string, NULL when it is none
    NUMBER = auto()  # the number as double, NULL when it is none
    FLAG = auto()  # the boolean, NULL when it is none
    IS_NULL = auto()  # whether it is JSON's null, NULL when there is no value
    MISMATCH = auto()  # FALSE when there is a value, else NULL: what `==` says to a value of another type
    HAS = auto()  # has(): NULL when the parent is not an object


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """Names of the columns that hold what was wanted of a place; empty where it was not wanted.

    Attributes:
        only_text: The value is always a string, so that `==` with a string needs no look at `mismatch`.
    """

    text: str = ""
    number: str = ""
    flag: str = ""
    is_null: str = ""
    mismatch: str = ""
    has: str = ""
    only_text: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A place, what is wanted of it, and where that is to be put."""

    place: Place
    want: Want
    columns: PlaceColumns
    number: int
