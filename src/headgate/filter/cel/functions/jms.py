"""Arithmetic of selectors: of numbers, and never a conversion of anything else."""

from __future__ import annotations

from typing import Final

from headgate.filter.cel.functions.declare import CelType, Function, FunctionError, Overload


def number(value: object) -> float:
    """An int, uint or double as a double.

    Raises:
        FunctionError: Anything else; a string is never read as a number, a boolean is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FunctionError("arithmetic in a selector is for numbers")
    return float(value)


def divide(dividend: float, divisor: float) -> float:
    """Division with a fractional result.

    Raises:
        FunctionError: The divisor is zero.
    """
    if divisor == 0:
        raise FunctionError("division by zero")
    return dividend / divisor


JMS_FUNCTIONS: Final = (
    Function("jms.number", (Overload((CelType.DYN,), CelType.DOUBLE, number),)),
    Function("jms.divide", (Overload((CelType.DOUBLE, CelType.DOUBLE), CelType.DOUBLE, divide),)),
)
