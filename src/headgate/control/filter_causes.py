"""Errors and warnings of an object's filter, with the field that the author wrote."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control.errors import Cause, InvalidObjectError, invalid, value_at
from headgate.control.objects import FILTER_ANNOTATION, FILTERS_ANNOTATION, EventPolicy, Object, Routed
from headgate.control.subscription_spec import field_as_written
from headgate.errors import InvalidInputError
from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.cost import scans_of
from headgate.filter.compile.plan import CompiledFilter


def scan_warning(plan: CompiledFilter | None) -> tuple[str, ...]:
    """What a filter costs that no look-up finds: a part of it is work for every event of the broker."""
    if plan is None:
        return ()
    compared, left = scans_of(plan)
    what = [
        *([f"{compared} comparison{'s' * (compared > 1)} in the matcher"] if compared else []),
        *(["an evaluation by cel-cpp, which is a hundred times dearer"] if left else []),
    ]
    if not what:
        return ()
    return (
        f"the filter has no ==, startsWith or endsWith to be looked up by: every event of the broker costs "
        f"{' and '.join(what)} (headgate filter explain shows which part)",
    )


def refuse_erased_filter(old: Object, new: Object, document: object) -> None:
    """Knative's own clients drop filter fields that they do not know: their update would deliver everything."""
    if not isinstance(old, Routed) or not isinstance(new, Routed):
        return
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    causes = []
    for field, before, after, annotation in (
        ("spec.filter", old.spec.filter, new.spec.filter, FILTER_ANNOTATION),
        ("spec.filters", old.spec.filters, new.spec.filters, FILTERS_ANNOTATION),
    ):
        if before and not after and isinstance(annotations, Mapping) and annotation in annotations:
            causes.append(invalid(field, "", f"the update would erase what annotation {annotation} still shows"))
    if causes:
        raise InvalidObjectError(
            tuple(causes),
            kind=new.kind,
            name=new.metadata.name,
            hint="to erase it on purpose, remove the annotation as well",
        )


def filter_cause(error: InvalidInputError, obj: Object) -> Cause:
    """The compiler's message with its place, at the field it names below `spec`."""
    if not isinstance(error, FilterError):
        return invalid("spec.filter", "", error.message)
    field = field_as_written(obj, error.field) if isinstance(obj, Routed) else error.field
    written: dict[str, object] = {}
    if isinstance(obj, Routed):
        written = {"filter": obj.spec.filter, "filters": obj.spec.filters}
    elif isinstance(obj, EventPolicy):
        written = {"filters": obj.spec.filters}
    place = f" at character {error.position + 1}" if error.position is not None else ""
    caret = f"\n{error.caret}\n" if error.caret else ""
    return invalid(f"spec.{field}", value_at(written, field), f"{error.reason}{place}{caret}")
