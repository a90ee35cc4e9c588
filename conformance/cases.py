"""Cases and their results, for all suites: lines of a file in, results out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from headgate_api.errors import InvalidInputError
from headgate_conformance.broker import CaseStatus

_Case = TypeVar("_Case", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Result:
    """One case.

    Attributes:
        id: As the file names it.
        verdict: What came of it.
        detail: What was found instead, or why the case is listed or skipped; empty for one that passed.
    """

    id: str
    verdict: CaseStatus
    detail: str = ""


Run = Callable[[Iterable[bytes]], Iterator[Result]]
"""A suite: lines of its file to results, in order."""
EXIT_FAILED: Final = 1
EXIT_UNUSABLE: Final = 2
LINE_BYTES_MAX: Final = 8 << 20
"""One case: a body of a batch in Base64, and room."""
NONE_KNOWN: Final[Mapping[str, str]] = {}
"""The cases that fail, by id, with the reason: none."""


class CaseError(InvalidInputError):
    """A line that is no case of the suite."""

    code = "invalid-case"


def read(lines: Iterable[bytes], form: type[_Case]) -> Iterator[_Case]:
    """The cases of a file, one a line; fields that `form` does not have are ignored.

    Raises:
        CaseError: A line has another form.
    """
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_BYTES_MAX:
            raise CaseError(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=form)
        except msgspec.DecodeError as error:
            raise CaseError(f"line {number}: {error}") from None


def judged(id: str, fault: str, known: Mapping[str, str] = NONE_KNOWN) -> Result:
    """The result of a case with this fault (empty: none); a listed case that does not fail is a failure of the list."""
    if id not in known:
        return Result(id, CaseStatus.FAILED, fault) if fault else Result(id, CaseStatus.PASSED)
    if fault:
        return Result(id, CaseStatus.KNOWN, known[id])
    return Result(id, CaseStatus.FAILED, f"is listed as failing ({known[id]}) but passes")


def compared(id: str, found: str, wanted: str, known: Mapping[str, str] = NONE_KNOWN) -> Result:
    """The result of a case that gave `found`; see `judged`."""
    return judged(id, "" if found == wanted else f"{found} instead of {wanted}", known)
