"""Filters from a consumer's metadata, by name: `tags`, or one of the group `headgate.consumer_filters`.

What Pulsar's ConsumerFilter factory is for: people who own a convention ("team", "tier") give it a filter, once, and
whoever consumes says only what it is. Such a filter is a `CustomDialect` whose value is the metadata, an object of
strings: it gives CEL text at admission, with all the limits of other dialects, and never sees an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from headgate.filter.cel.errors import FilterError
from headgate.filter.dialects.custom import Installed, installed
from headgate.filter.dialects.tags import tags_of
from headgate.limits import FILTERS_CACHED_MAX

GROUP: Final = "headgate.consumer_filters"
TAGS: Final = "tags"
"""The one that is there, and the default."""
CUSTOM: Final[Mapping[str, Installed]] = installed((TAGS,), GROUP, "consumer filter")


def consumer_filter(name: str, metadata: Mapping[str, str]) -> dict[str, object] | None:
    """A filter object, as in `spec.filter`; None when the metadata asks for every event.

    Args:
        name: Of the consumer filter; empty for `tags`.
        metadata: The consumer's.

    Raises:
        FilterError: There is none of the name, it is broken, or it refuses the metadata.
    """
    if name in ("", TAGS):
        tags = tags_of(metadata)
        return {"tags": tags} if tags else None
    return {"cel": _text(name, tuple(sorted(metadata.items())))}


@lru_cache(FILTERS_CACHED_MAX)
def _text(name: str, metadata: tuple[tuple[str, str], ...]) -> str:
    """Asked once: the plan and the text that is stored with it must be of one answer."""
    found = CUSTOM.get(name)
    if found is None or name == TAGS:
        hint = f"known are {', '.join(sorted({TAGS, *CUSTOM}))}; packages bring others (entry points {GROUP})"
        raise FilterError(f"there is no consumer filter {name!r}", field="consumerFilter", hint=hint)
    return found(dict(metadata), "consumerMetadata")
