"""The publish URI, `/{namespace}/{broker}`: the paths of the HTTP port that take events."""

from __future__ import annotations

from typing import Final

RESERVED_NAMESPACES: Final = frozenset(
    {"api", "apis", "openapi", "version", "livez", "readyz", "healthz", "metrics", "admission", "ui"} | {".well-known"}
)
"""First path segments of the HTTP port that are not namespaces."""


def published_broker(path: str) -> str:
    """`namespace/name` of the broker that takes events at a path, percent-decoded; empty for every other path.

    A slash behind the broker does not matter.
    """
    parts = path.removesuffix("/").split("/")
    if len(parts) == 3 and parts[1] and parts[2] and parts[1] not in RESERVED_NAMESPACES:
        return f"{parts[1]}/{parts[2]}"
    return ""
