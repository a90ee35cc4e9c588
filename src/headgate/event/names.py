"""Names of brokers as people and programs write them: `name` or `namespace/name`."""

from __future__ import annotations

from typing import Final

NAMESPACE_DEFAULT: Final = "default"


def full_name(name: str, namespace: str = NAMESPACE_DEFAULT) -> str:
    """The full name, `namespace/name`; whether there is such a broker is for others to say.

    Args:
        namespace: That is understood where none is given.
    """
    return name if "/" in name else f"{namespace}/{name}"
