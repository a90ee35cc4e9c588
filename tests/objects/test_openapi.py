from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headgate.auth.routes import ROUTES
from headgate.objects.api import openapi
from headgate.objects.kinds.decode import _fields
from headgate_api.objects.kinds import Broker, Metadata, Subscription, Trigger

SCHEMAS = {
    name: schema
    for version in openapi.GROUPS
    for name, schema in json.loads(openapi.document(version))["components"]["schemas"].items()
}


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("dev.knative.eventing.v1.Broker", Broker),
        ("dev.knative.eventing.v1.Trigger", Trigger),
        ("dev.headgate.v1.Subscription", Subscription),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", Metadata),
    ],
)
def test_the_schema_has_the_fields_of_the_structs(name: str, struct: type[msgspec.Struct]) -> None:
    def compare(schema: dict[str, Any], struct: type[msgspec.Struct], path: str) -> None:
        known = _fields(struct)
        assert set(schema["properties"]) == set(known), path
        for field, inner in known.items():
            if inner is not None and "properties" in schema["properties"][field]:
                compare(schema["properties"][field], inner, f"{path}.{field}")

    compare(SCHEMAS[name], struct, struct.__name__)


def test_every_field_is_described() -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        assert schema.get("description"), path
        for field, inner in schema.get("properties", {}).items():
            walk(inner, f"{path}.{field}")

    for name, schema in SCHEMAS.items():
        walk(schema, name)


def test_every_path_of_a_group_is_in_its_document() -> None:
    """Not the objects alone: whatever the table of routes has below the group, with all its parameters."""
    found = 0
    for group in openapi.GROUPS:
        paths = json.loads(openapi.document(group))["paths"]
        for route in ROUTES:
            # Lists of all namespaces, whole collections and statuses are objects' paths in another form.
            is_object = not route.wanted.subresource or route.wanted.subresource == "status"
            if not route.path.startswith(f"/{group}/") or (is_object and route.path not in paths):
                continue
            operation = paths[route.path].get(route.method.lower())
            if is_object and operation is None:
                continue
            assert operation is not None, route
            found += 1
            named = {one["name"] for one in paths[route.path].get("parameters", [])}
            if "x-kubernetes-action" not in operation:
                assert named == {name.strip("{}") for name in route.path.split("/") if name.startswith("{")}
    assert found > 50
    own = json.loads(openapi.document("apis/headgate.dev/v1"))["paths"]
    assert "post" in own["/apis/headgate.dev/v1/filters/test"]
    assert own["/apis/headgate.dev/v1/namespaces/{namespace}/summary"]["get"]["description"].startswith("A summary")
