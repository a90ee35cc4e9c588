"""Functions that CEL has here beside its own: pure Python that cel-cpp calls.

A dialect whose operator CEL cannot say is translated to one of these, so that there is one evaluator: cel-cpp. A
function is total on its declared types or raises `FunctionError`, which is the CEL error of that call and nothing more.
It costs 1.5 us a call more than a built-in one: whatever CEL can say in a reasonable space is said in CEL. Those of
event patterns are `json.py`, those of CESQL `cesql.py`; small ones stand here.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from headgate.filter.cel.functions.cesql import CESQL_FUNCTIONS
from headgate.filter.cel.functions.declare import CelType, Function, FunctionError, Overload
from headgate.filter.cel.functions.json import JSON_FUNCTIONS

# --- selectors: arithmetic, of numbers, and never a conversion of anything else -------------------


def _number(value: object) -> float:
    """An int, uint or double as a double; a string is never read as a number, a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FunctionError("arithmetic in a selector is for numbers")
    return float(value)


def _divide(dividend: float, divisor: float) -> float:
    if divisor == 0:
        raise FunctionError("division by zero")
    return dividend / divisor


# --- IP addresses and networks, of which CEL has none of its own ----------------------------------

_ADDRESS_CHARACTERS_MAX: Final = 45
"""The longest spelling of an IPv6 address, one that ends in an IPv4 address."""


@lru_cache(maxsize=1024)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise FunctionError(f"ip.within(): {error}") from None


def _within(value: object, network: str) -> bool:
    """`ip.within(value, "10.0.0.0/24")`: whether a value is an address in the network; an error where that is none."""
    inside = _network(network)
    if not isinstance(value, str) or len(value) > _ADDRESS_CHARACTERS_MAX or "%" in value:
        return False
    try:
        return ipaddress.ip_address(value) in inside
    except ValueError:
        return False


FUNCTIONS: Final[tuple[Function, ...]] = (
    *CESQL_FUNCTIONS,
    Function("ip.within", (Overload((CelType.DYN, CelType.STRING), CelType.BOOL, _within),)),
    Function("jms.number", (Overload((CelType.DYN,), CelType.DOUBLE, _number),)),
    Function("jms.divide", (Overload((CelType.DOUBLE, CelType.DOUBLE), CelType.DOUBLE, _divide),)),
    *JSON_FUNCTIONS,
)
"""Every function there is; names are `<subject>.<function>` and never change meaning, canonical texts hold them."""
