"""Names of brokers: `name` or `namespace/name` as people write them, and the identity that events are stored with.

The identity is one text, `namespace/name/uid`. A broker that is made anew under the name of a deleted one is another
broker, as in Kubernetes. The log, the filters' table and readers compare identities; people are shown the path,
`namespace/name`.
"""

from __future__ import annotations

from typing import Final

NAMESPACE_DEFAULT: Final = "default"


def full_name(name: str, namespace: str = NAMESPACE_DEFAULT) -> str:
    """The full name, `namespace/name`; whether there is such a broker is for others to say."""
    return name if "/" in name else f"{namespace}/{name}"


def identity(path: str, uid: str) -> str:
    """The identity of the broker `namespace/name` with this uid; an empty uid is of one that never was."""
    return f"{path}/{uid}"


def path_of(identity: str) -> str:
    """`namespace/name` of an identity."""
    return identity.rpartition("/")[0]


def namespace_of(broker: str) -> str:
    """The namespace of a broker, by its identity or its path."""
    return broker.partition("/")[0]
