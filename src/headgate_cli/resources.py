"""What commands call a kind of objects: `triggers`, `trigger`, `ns`, and `trigger/gold` for one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headgate_api.errors import InvalidInputError
from headgate_api.objects.kinds import Kind
from headgate_cli.client import api_path, fail, split_name


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects of the API, as paths and messages name it; `full_name` is `Trigger.eventing.knative.dev`."""

    api_version: str
    plural: str
    singular: str
    full_name: str
    is_namespaced: bool

    def path(self, namespace: str | None) -> str:
        """Of all its objects in a namespace, or in all with None."""
        return api_path(self.api_version, namespace if self.is_namespaced else None, self.plural)

    def named_path(self, name: str, namespace: str) -> str:
        """Of the object that a person names."""
        if self.is_namespaced:
            namespace, name = split_name(name, namespace)
        return api_path(self.api_version, namespace if self.is_namespaced else None, self.plural, name)

    def label(self, name: str) -> str:
        """`trigger.eventing.knative.dev/gold`."""
        return f"{self.full_name.lower()}/{name}"


RESOURCES: Final = (
    *(Resource(kind.api_version, kind.plural, kind.value.lower(), kind.full_name, kind.is_namespaced) for kind in Kind),
    Resource("v1", "namespaces", "namespace", "Namespace", is_namespaced=False),
)
_SHORT: Final = {"ns": "namespaces", "quota": "resourcequotas", "hgsub": "subscriptions"}
"""As `kubectl api-resources` shows them."""
ALL: Final = "brokers,triggers,subscriptions"
"""What `all` is, as for kubectl: what a person made for events."""
KINDS_HELP: Final = "brokers, triggers, subscriptions, eventpolicies, eventtypes, secrets, namespaces, ...; all"


def resource_named(text: str) -> Resource:
    """The kind that a person names: its plural, singular, short or full name; InvalidInputError for none."""
    wanted = text.lower()
    wanted = _SHORT.get(wanted, wanted)
    for one in RESOURCES:
        if wanted in (one.plural, one.singular, one.full_name.lower()):
            return one
    raise InvalidInputError(f"unknown kind {text!r}", hint=f"one of {', '.join(one.plural for one in RESOURCES)}")


def chosen_objects(kind: str, names: Sequence[str]) -> Iterator[tuple[Resource, str]]:
    """Each object of `trigger gold silver`, or of `trigger/gold broker/orders`."""
    if "/" not in kind:
        resource = resource_named(kind)
        yield from ((resource, name) for name in names)
        return
    for each in (kind, *names):
        named, slash, name = each.partition("/")
        if not slash or not name:
            fail(f"{each!r} is not KIND/NAME", hint="either one kind and names, or KIND/NAME for every object")
        yield resource_named(named), name
