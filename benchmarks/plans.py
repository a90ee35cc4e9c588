"""Where do a hundred thousand compiled filters come from in seconds? From one, with another number in its text."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter
from headgate.objects.store.plans import PlanDecoder, encode_plan

TEMPLATE = 987_654_321
CHECKED = 97
"""One in so many is compiled as well, and must come out the same."""


class Plans:
    """Compiled filters that differ in a number only, which may stand in strings and names.

    Args:
        text: The filter of a number.
    """

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._template = msgspec.json.encode(compile_cel(text(TEMPLATE))).decode()
        self._decoder = msgspec.json.Decoder(CompiledFilter)
        self._stored = PlanDecoder()

    def of(self, number: int) -> CompiledFilter:
        made = self._decoder.decode(self._template.replace(str(TEMPLATE), str(number)))
        made = self._stored.decode(encode_plan(made))  # equal signatures are one object, as where a store is read
        if number % CHECKED == 0 and made != compile_cel(self._text(number)):
            sys.exit(f"wrong: {self._text(number)} is not what the compiler makes of it")
        return made
