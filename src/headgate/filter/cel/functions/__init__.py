"""Functions that CEL has here beside its own: pure Python that cel-cpp calls, one module a subject.

A dialect whose operator CEL cannot say is translated to one of these, so that there is one evaluator: cel-cpp. A
function is total on its declared types or raises `FunctionError`, which is the CEL error of that call and nothing more.
It costs 1.5 us a call more than a built-in one: whatever CEL can say in a reasonable space is said in CEL.
"""

from __future__ import annotations

from typing import Final

from headgate.filter.cel.functions.cesql import CESQL_FUNCTIONS
from headgate.filter.cel.functions.declare import Function
from headgate.filter.cel.functions.ip import IP_FUNCTIONS
from headgate.filter.cel.functions.jms import JMS_FUNCTIONS
from headgate.filter.cel.functions.json import JSON_FUNCTIONS

FUNCTIONS: Final[tuple[Function, ...]] = (*CESQL_FUNCTIONS, *IP_FUNCTIONS, *JMS_FUNCTIONS, *JSON_FUNCTIONS)
"""Every function there is; names are `<subject>.<function>` and never change meaning, canonical texts hold them."""
