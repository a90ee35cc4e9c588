"""`headgate lint -f`: what the filters of triggers and subscriptions in files say of one another, without a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from headgate.filter.compile.plan import CompiledFilter
from headgate.inspect.lint import lint_view
from headgate.objects.api.bootstrap import problems_of
from headgate.objects.api.validator import placed, plan_of, with_defaults
from headgate.objects.kinds.decode import decode_object
from headgate.objects.kinds.validate import filter_cause
from headgate.objects.store.plans import filter_compiler
from headgate_api.errors import InvalidInputError
from headgate_api.objects.bodies import kind_of
from headgate_api.objects.errors import InvalidObjectError, required
from headgate_api.objects.kinds import Kind, Routed
from headgate_api.objects.manifests import Document, ManifestError

_COMPARED: Final = (Kind.TRIGGER, Kind.SUBSCRIPTION)


def views(documents: Iterable[Document], namespace: str) -> Iterator[dict[str, Any]]:
    """What a server would answer on each broker, sorted; ManifestError with all filters that it would refuse.

    `namespace` is of the objects that name none. Of two objects of one name the last one counts.
    """
    brokers = defaultdict[str, dict[str, CompiledFilter]](dict)
    problems: list[str] = []
    for document in documents:
        if not isinstance(document.value, Mapping) or document.value.get("kind") not in _COMPARED:
            continue
        try:
            obj = _read(document.value, namespace)
            brokers[obj.broker_key][f"{obj.kind}/{obj.name_at_broker}"] = _compiled(obj)
        except InvalidInputError as error:
            problems.extend(problems_of(document, error))
    if problems:
        raise ManifestError(tuple(problems))
    for path, filters in sorted(brokers.items()):
        yield msgspec.to_builtins(lint_view(path, filters))


def _read(document: Mapping[str, object], namespace: str) -> Routed:
    found = decode_object(kind_of(document), document).obj
    obj = with_defaults(placed(found, found.metadata.namespace or namespace, None))
    assert isinstance(obj, Routed)
    if not obj.metadata.name:
        cause = required("metadata.name", "name or generateName is required")
        raise InvalidObjectError((cause,), kind=obj.kind)
    return obj


def _compiled(obj: Routed) -> CompiledFilter:
    try:
        return plan_of(obj, filter_compiler())
    except InvalidInputError as error:
        cause = filter_cause(error, obj)
        raise InvalidObjectError((cause,), kind=obj.kind, name=obj.metadata.name, hint=error.hint) from error
