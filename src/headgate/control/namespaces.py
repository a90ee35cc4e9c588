"""Which namespaces are there? Those in use, as read-only objects: a namespace exists as soon as something is in it."""

from __future__ import annotations

import uuid
from typing import Final

from headgate.control.objects import JsonObject

_UID_SPACE: Final = uuid.UUID("6f1c1f0e-6d5c-5a55-9d6b-3c0b8f2c9a11")


def namespace_object(name: str) -> JsonObject:
    """A namespace as Kubernetes shows it."""
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": _metadata(name),
        "spec": {},
        "status": {"phase": "Active"},
    }


def namespace_list(names: list[str], *, is_table: bool) -> JsonObject:
    """All namespaces, as a list or as a table."""
    if not is_table:
        items = [namespace_object(name) for name in names]
        return {"kind": "NamespaceList", "apiVersion": "v1", "metadata": {"resourceVersion": "0"}, "items": items}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "0"},
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "Name", "priority": 0},
            {"name": "Status", "type": "string", "format": "", "description": "Always Active", "priority": 0},
        ],
        "rows": [
            {
                "cells": [name, "Active"],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": _metadata(name),
                },
            }
            for name in names
        ],
    }


def _metadata(name: str) -> JsonObject:
    labels = {"kubernetes.io/metadata.name": name}
    return {"name": name, "uid": str(uuid.uuid5(_UID_SPACE, name)), "resourceVersion": "0", "labels": labels}
