"""Secret as a typed struct: Kubernetes' object of the core group."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from headgate.control.metadata import ApiObject, field_doc

CORE_GROUP: Final = ""
"""Of Kubernetes' oldest kinds."""


class Secret(ApiObject, frozen=True):
    """Small values that no one else may read; stored encrypted."""

    type: Annotated[str, field_doc("What it is for, such as kubernetes.io/tls; Opaque by default. Immutable.")] = ""
    data: Annotated[dict[str, str], field_doc("Values in Base64.")] = msgspec.field(default_factory=dict)
    string_data: Annotated[dict[str, str], field_doc("Values as text: written into data, never shown.")] = (
        msgspec.field(default_factory=dict)
    )
    immutable: Annotated[bool, field_doc("Whether its values may never change again.")] = False

    def __repr__(self) -> str:
        """Without the values: an object ends up in messages."""
        return f"Secret({self.metadata.path})"
