"""Filters that installed packages add: dialects, and filters from a consumer's metadata.

A package's dialect, an entry point of the group `headgate.dialects`, makes CEL text of a value and never sees an event.
Its text goes through the compiler with all its limits, so the worst it can do is to refuse, or to say something else
than its author meant. A dialect that is broken takes no filters (`FilterError`), and nobody else notices.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Final

from headgate.filter.cel.errors import FilterError
from headgate.filter.dialects.attributes import tags_of
from headgate_api.limits import (
    CUSTOM_DIALECT_S_MAX,
    CUSTOM_REASON_CHARACTERS_MAX,
    FILTER_CHARACTERS_MAX,
    FILTERS_CACHED_MAX,
)

GROUP: Final = "headgate.dialects"
_NAME: Final = re.compile(r"[a-z][A-Za-z0-9]{0,62}")


@dataclass(frozen=True, slots=True)
class CustomDialect:
    """What an entry point of the group `headgate.dialects` names.

    Attributes:
        name: The field of `spec.filter`; also the entry point's name.
        schema: JSON schema (2020-12) that a value must satisfy; `description` is shown to users. No remote references.
        to_cel: A value that satisfies the schema to CEL text over `ce` and `data`. It must depend on the value only,
            return within CUSTOM_DIALECT_S_MAX, and raise ValueError, with a text for users, for what it refuses.
    """

    name: str
    schema: Mapping[str, object]
    to_cel: Callable[[object], str]


@dataclass(frozen=True, slots=True)
class Installed:
    """An entry point of the group, or several of one name, which is a fault."""

    name: str
    package: str  # the distribution that brings it, with its version
    points: tuple[importlib.metadata.EntryPoint, ...]
    taken: bool  # whether Headgate itself has one of that name
    kind: str = "dialect"
    _busy: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def load(self) -> CustomDialect:
        """The dialect; imports its package at the first call. A FilterError says why it cannot be used."""
        return _load(self)

    def fault(self) -> str:
        """Why it cannot be used; empty when it can."""
        try:
            self.load()
        except FilterError as error:
            return error.reason
        return ""

    def __call__(self, value: object, field: str) -> str:
        try:
            dialect = self.load()
            text = self._translated(dialect, value)
        except FilterError as error:
            raise error.at_field(field + error.field) from None
        return text

    def _translated(self, dialect: CustomDialect, value: object) -> str:
        results: list[str | FilterError] = []
        copy = json.loads(json.dumps(value))

        def work() -> None:
            try:
                results.append(self._checked(dialect, copy))
            except FilterError as error:
                results.append(error)
            finally:
                self._busy.release()

        # A thread cannot be ended, so there is at most one a dialect, and it waits for the one before it.
        if not self._busy.acquire(timeout=CUSTOM_DIALECT_S_MAX):
            raise self.refusal("is still busy with another filter")
        try:
            threading.Thread(target=work, name=f"dialect {self.name}", daemon=True).start()
        except RuntimeError:  # the system gives no thread now; the next filter may get one
            self._busy.release()
            raise
        if not self._busy.acquire(timeout=CUSTOM_DIALECT_S_MAX):
            raise self.refusal(f"took longer than {CUSTOM_DIALECT_S_MAX:g} s (CUSTOM_DIALECT_S_MAX)", limit=True)
        self._busy.release()
        (result,) = results
        if isinstance(result, FilterError):
            raise result
        return result

    def _checked(self, dialect: CustomDialect, value: object) -> str:
        _check_schema(dialect, value)
        try:
            text = dialect.to_cel(value)
        except ValueError as error:
            raise FilterError(_shortened(str(error)) or "is refused", field="") from None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code: whatever it raises is its fault
            raise self.refusal(f"failed: {type(error).__name__}: {error}") from None
        if not isinstance(text, str):
            raise self.refusal(f"gave {type(text).__name__}, not CEL text")
        if len(text) > FILTER_CHARACTERS_MAX:
            what = f"gave {len(text)} characters of CEL: the limit is {FILTER_CHARACTERS_MAX} (FILTER_CHARACTERS_MAX)"
            raise FilterError(self._message(what), field="", limit="FILTER_CHARACTERS_MAX")
        if not text.strip():
            raise self.refusal("gave an empty text")
        return text

    def refusal(self, what: str, *, limit: bool = False) -> FilterError:
        """The refusal that is the dialect's fault and not the filter's."""
        hint = f"this is a fault of the package {self.package}, not of the filter"
        return FilterError(self._message(what), field="", hint=hint, limit="CUSTOM_DIALECT_S_MAX" if limit else "")

    def _message(self, what: str) -> str:
        return f"the {self.kind} {self.name} of {self.package} {_shortened(what)}"


def installed(built_in: Collection[str], group: str = GROUP, kind: str = "dialect") -> Mapping[str, Installed]:
    """Dialects of packages, by name; broken ones too, which refuse with their reason. Nothing is imported yet.

    Names of `built_in` are taken: a package's dialect of such a name is listed by its package and never used.
    """
    points: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=group):
        points.setdefault(point.name, []).append(point)
    return {
        name: Installed(
            name, ", ".join(sorted({_package(point) for point in found})), tuple(found), name in built_in, kind
        )
        for name, found in sorted(points.items())
    }


def _package(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


@cache
def _load(item: Installed) -> CustomDialect:
    if item.taken:
        raise item.refusal(f"has the name of one of Headgate's own {item.kind}s")
    if not _NAME.fullmatch(item.name):
        raise item.refusal("has a name that no field can have: a lower-case letter, then letters and digits")
    if len(item.points) > 1:
        raise item.refusal("is given twice: remove one of the packages")
    try:
        dialect = item.points[0].load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code
        raise item.refusal(f"cannot be imported: {type(error).__name__}: {error}") from None
    if not isinstance(dialect, CustomDialect):
        raise item.refusal(f"is no CustomDialect but {type(dialect).__name__}")
    if dialect.name != item.name:
        raise item.refusal(f"calls itself {dialect.name!r}: entry point and dialect must have one name")
    fault = _schema_fault(dialect.schema)
    if fault:
        raise item.refusal(f"has no valid JSON schema: {fault}")
    return dialect


def _schema_fault(schema: Mapping[str, object]) -> str:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(json.loads(json.dumps(schema)))
    except SchemaError as error:
        return str(error.message)
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return ""


def _check_schema(dialect: CustomDialect, value: object) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator = Draft202012Validator(json.loads(json.dumps(dialect.schema)), registry=Registry())
    try:
        found = best_match(validator.iter_errors(value))
    except (Unresolvable, RecursionError, re.error) as error:
        reason = f"the dialect {dialect.name} has a JSON schema that cannot be used: {_shortened(str(error))}"
        raise FilterError(reason, field="") from None
    if found is not None:
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in found.absolute_path)
        raise FilterError(_shortened(found.message), field=path)


def _shortened(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= CUSTOM_REASON_CHARACTERS_MAX else line[: CUSTOM_REASON_CHARACTERS_MAX - 3] + "..."


# --- consumer metadata ----------------------------------------------------------------------------
# By name: `tags`, or an entry point of the group `headgate.consumer_filters`.
#
# What Pulsar's ConsumerFilter factory is for: people who own a convention ("team", "tier") give it a filter, once, and
# whoever consumes says only what it is. Such a filter is a `CustomDialect` whose value is the metadata, an object of
# strings: it gives CEL text at admission, with all the limits of other dialects, and never sees an event.


CONSUMER_GROUP: Final = "headgate.consumer_filters"
TAGS: Final = "tags"
"""The one that is there, and the default."""
CONSUMER_FILTERS: Final[Mapping[str, Installed]] = installed((TAGS,), CONSUMER_GROUP, "consumer filter")


def consumer_filter(name: str, metadata: Mapping[str, str]) -> dict[str, object] | None:
    """A filter object by the consumer filter `name` (empty: `tags`); None where the metadata asks for every event."""
    if name in ("", TAGS):
        tags = tags_of(metadata)
        return {"tags": tags} if tags else None
    return {"cel": _consumer_text(name, tuple(sorted(metadata.items())))}


@lru_cache(FILTERS_CACHED_MAX)
def _consumer_text(name: str, metadata: tuple[tuple[str, str], ...]) -> str:
    """Asked once: the plan and the text that is stored with it must be of one answer."""
    found = CONSUMER_FILTERS.get(name)
    if found is None or name == TAGS:
        known = ", ".join(sorted({TAGS, *CONSUMER_FILTERS}))
        hint = f"known are {known}; packages bring others (entry points {CONSUMER_GROUP})"
        raise FilterError(f"there is no consumer filter {name!r}", field="consumerFilter", hint=hint)
    return found(dict(metadata), "consumerMetadata")
