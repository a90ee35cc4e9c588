"""May this object be stored? Decode, set defaults, compile the filter, validate; then create, replace, merge, apply.

The API, manifests and tests all come in here; the store behind it trusts what it is given.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from headgate.control.decode import Decoded, FieldValidation, check_shape, decode_object
from headgate.control.defaults import NAMESPACE_DEFAULT, with_defaults, without_filter
from headgate.control.delivery import buries_filter_errors
from headgate.control.egress import UrlPolicy
from headgate.control.errors import (
    Cause,
    InvalidObjectError,
    MalformedObjectError,
    ObjectNotFoundError,
    StaleObjectError,
    invalid,
)
from headgate.control.objects import (
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    JsonObject,
    Kind,
    Object,
    ObjectKey,
    Routed,
    Trigger,
    encode,
)
from headgate.control.pulling import wanted, written_field
from headgate.control.store import Store
from headgate.control.validate import change_causes, object_causes
from headgate.errors import InvalidInputError
from headgate.filter.advice import advice
from headgate.filter.errors import FilterError
from headgate.filter.plan import CompiledFilter
from headgate.filter.watchful import watchful

_LOCAL: Final = UrlPolicy()
MERGE_ATTEMPTS_MAX: Final = 20
"""How often a patch without resourceVersion is tried anew when another writer came between."""
_SUFFIX_BYTES: Final = 4
"""Of `generateName`: eight hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of a write.

    Attributes:
        obj: As stored.
        warnings: For `Warning` headers.
        outcome: `created`, `configured` or `unchanged`.
    """

    obj: Object
    warnings: tuple[str, ...] = ()
    outcome: str = "configured"


class Admission:
    """The only way of objects into the store. Every method may block: call it in a thread.

    Args:
        store: Where objects go; its compiler compiles their filters.
        policy: Which URLs events may go to.
    """

    def __init__(self, store: Store, policy: UrlPolicy = _LOCAL) -> None:
        self.store = store
        self._policy = policy

    def create(
        self,
        kind: Kind,
        document: object,
        *,
        namespace: str | None = None,
        validation: FieldValidation = FieldValidation.STRICT,
        dry_run: bool = False,
    ) -> Admitted:
        """Store a new object.

        Args:
            kind: What the document must be.
            document: Decoded JSON or YAML.
            namespace: Where the request says it goes; None takes the document's, else `default`.
            validation: What unknown fields do.
            dry_run: Do everything, store nothing.

        Raises:
            InvalidInputError: The document is no valid object.
            AlreadyExistsError: The name is taken.
            QuotaError: There are as many as there may be.
        """
        decoded, plan = self._admit(kind, document, namespace, None, validation)
        if decoded.obj.metadata.resource_version:
            raise MalformedObjectError("resourceVersion should not be set on objects to be created")
        return Admitted(self.store.create(decoded.obj, plan, dry_run=dry_run), decoded.warnings, "created")

    def replace(
        self,
        key: ObjectKey,
        document: object,
        *,
        validation: FieldValidation = FieldValidation.STRICT,
        dry_run: bool = False,
    ) -> Admitted:
        """Put a whole object in the place of the stored one.

        Raises:
            InvalidInputError: The document is no valid object, changes an immutable field or erases a filter unseen.
            ObjectNotFoundError: There is none of the name.
            StaleObjectError: Its resourceVersion is not the stored one.
        """
        decoded, plan = self._admit(key.kind, document, key.namespace, key.name, validation)
        old = self.store.get(key)
        _refuse_erased_filter(old, decoded.obj, document)
        return self._replace(old, decoded, plan, dry_run=dry_run)

    def merge(
        self,
        key: ObjectKey,
        patch: object,
        *,
        validation: FieldValidation = FieldValidation.STRICT,
        dry_run: bool = False,
    ) -> Admitted:
        """Apply a JSON merge patch (RFC 7396) to the stored object.

        Raises:
            InvalidInputError: The result is no valid object or changes an immutable field.
            ObjectNotFoundError: There is none of the name.
            StaleObjectError: The patch names a resourceVersion, and it is not the stored one.
        """
        if not isinstance(patch, Mapping):
            raise MalformedObjectError("a merge patch must be an object")
        check_shape(patch)
        for attempt in range(MERGE_ATTEMPTS_MAX):
            old = self.store.get(key)
            merged = merge_patch(msgspec.json.decode(encode(old)), patch)
            decoded, plan = self._admit(key.kind, merged, key.namespace, key.name, validation)
            try:
                return self._replace(old, decoded, plan, dry_run=dry_run)
            except StaleObjectError:
                theirs = decoded.obj.metadata.resource_version != old.metadata.resource_version
                if theirs or attempt == MERGE_ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def check(self, document: object, *, namespace: str | None = None) -> ObjectKey:
        """Everything that can be said of a document without the store.

        Returns:
            Where it would be stored.

        Raises:
            InvalidInputError: The document is no valid object.
        """
        kind = kind_of(document)
        meta = self._admit(kind, document, namespace, None, FieldValidation.STRICT)[0].obj.metadata
        return ObjectKey(kind, meta.namespace, meta.name)

    def review(
        self, kind: Kind, document: Mapping[str, object], before: object, *, namespace: str | None = None
    ) -> tuple[str, ...]:
        """Judge an object that another store keeps; unknown fields are that store's business.

        Args:
            kind: What the document must be.
            document: Decoded JSON.
            before: The object that it replaces; None for a new one.
            namespace: Where the request says it goes.

        Returns:
            Warnings.

        Raises:
            InvalidInputError: The document is no valid object, or changes an immutable field.
        """
        decoded, _ = self._admit(kind, document, namespace, None, FieldValidation.WARN)
        if before is not None:
            try:
                old = decode_object(kind, before, field_validation=FieldValidation.IGNORE).obj
            except InvalidInputError:
                return decoded.warnings  # older than the rules: nothing to compare with
            if causes := change_causes(with_defaults(old), decoded.obj):
                raise InvalidObjectError(causes, kind=kind, name=decoded.obj.metadata.name)
        return decoded.warnings

    def apply(self, document: object, *, namespace: str | None = None, dry_run: bool = False) -> Admitted:
        """Create the object, or give the stored one this spec, these labels and these annotations.

        Labels and annotations that the document does not name are kept.

        Raises:
            InvalidInputError: The document is no valid object or changes an immutable field.
        """
        kind = kind_of(document)
        decoded, _ = self._admit(kind, document, namespace, None, FieldValidation.STRICT)
        meta = decoded.obj.metadata
        key = ObjectKey(kind, meta.namespace, meta.name)
        try:
            old = self.store.get(key)
        except ObjectNotFoundError:
            return self.create(kind, document, namespace=namespace, dry_run=dry_run)
        kept = msgspec.structs.replace(
            meta,
            labels=old.metadata.labels | meta.labels,
            annotations=without_filter(old.metadata.annotations) | meta.annotations,
        )
        obj = with_defaults(msgspec.structs.replace(decoded.obj, metadata=kept))
        return self._replace(old, replace(decoded, obj=obj), self._plan(obj), dry_run=dry_run)

    def _replace(self, old: Object, decoded: Decoded, plan: CompiledFilter | None, *, dry_run: bool) -> Admitted:
        new = self.store.replace(decoded.obj, plan, dry_run=dry_run)
        # Not the resourceVersion: a status may have been written in between.
        same = all(
            getattr(new.metadata, field) == getattr(old.metadata, field)
            for field in ("generation", "labels", "annotations")
        )
        return Admitted(new, decoded.warnings, "unchanged" if same else "configured")

    def _admit(
        self, kind: Kind, document: object, namespace: str | None, name: str | None, validation: FieldValidation
    ) -> tuple[Decoded, CompiledFilter | None]:
        decoded = decode_object(kind, document, field_validation=validation)
        obj = _named(decoded.obj, namespace, name)
        obj = with_defaults(obj)
        causes = list(object_causes(obj, self._policy))
        plan = None
        try:
            plan = self._plan(obj)
        except InvalidInputError as error:
            causes.append(_filter_cause(error, obj))
            hint = error.hint
        else:
            hint = ""
        if causes:
            raise InvalidObjectError(tuple(causes), kind=kind, name=obj.metadata.name, hint=hint)
        if isinstance(obj, Routed):
            said = tuple(one.message for one in advice(obj.spec.filter, obj.spec.filters))
            decoded = replace(decoded, warnings=decoded.warnings + said + scan_warning(plan))
        return replace(decoded, obj=obj), plan

    def _plan(self, obj: Object) -> CompiledFilter | None:
        if not isinstance(obj, Routed):
            return None
        compiled = self.store.compiler.compile(*wanted(obj))
        buries = isinstance(obj, Trigger) and buries_filter_errors(obj.spec.delivery)
        return watchful(compiled) if buries else compiled


def scan_warning(plan: CompiledFilter | None) -> tuple[str, ...]:
    """What a filter costs that no look-up finds: a part of it is work for every event of the broker."""
    rows = [row for row in plan.rows if not row.signature.key] if plan is not None else []
    compared = sum(row.signature.exact and bool(row.signature.residual) for row in rows)
    left = sum(not row.signature.exact for row in rows)
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


def kind_of(document: object) -> Kind:
    """The kind that a document says it is.

    Raises:
        MalformedObjectError: It is none that can be stored.
    """
    found = document.get("kind") if isinstance(document, Mapping) else None
    if not isinstance(found, str) or found not in set(Kind):
        said = f"kind is {found!r}" if found else "kind is missing"
        raise MalformedObjectError(f"{said}, expected {' or '.join(map(repr, map(str, Kind)))}")
    return Kind(found)


def merge_patch(target: object, patch: object) -> object:
    """RFC 7396: what the target becomes; bounded by the depth of the patch, which `check_shape` has seen."""
    if not isinstance(patch, Mapping):
        return patch
    merged: JsonObject = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _named(obj: Object, namespace: str | None, name: str | None) -> Object:
    """The object under the namespace and name that the request says."""
    meta = obj.metadata
    if namespace is not None and meta.namespace not in ("", namespace):
        raise MalformedObjectError(
            f"the namespace of the provided object does not match the namespace sent on the request "
            f"({meta.namespace!r} is not {namespace!r})"
        )
    if name is not None and meta.name not in ("", name):
        raise MalformedObjectError(f"the name of the object ({meta.name}) does not match the name on the URL ({name})")
    given = name or meta.name
    if not given and meta.generate_name:
        given = meta.generate_name + secrets.token_hex(_SUFFIX_BYTES)
    place = namespace or meta.namespace or NAMESPACE_DEFAULT
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(meta, namespace=place, name=given))


def _refuse_erased_filter(old: Object, new: Object, document: object) -> None:
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


def _written_at(obj: Object, field: str) -> object:
    """The value at a path below `spec` such as `filters[0].any[1].prefix`; None when there is none."""
    value: object = {"filter": obj.spec.filter, "filters": obj.spec.filters} if isinstance(obj, Routed) else None
    for step in field.replace("[", ".[").split("."):
        index = step[1:-1]
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list | tuple) and index.isdecimal() and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value


def _filter_cause(error: InvalidInputError, obj: Object) -> Cause:
    """The compiler's message with its place, at the field it names below `spec`."""
    if not isinstance(error, FilterError):
        return invalid("spec.filter", "", error.message)
    field = written_field(obj, error.field) if isinstance(obj, Routed) else error.field
    value = _written_at(obj, field)
    place = f" at character {error.position + 1}" if error.position is not None else ""
    caret = f"\n{error.caret}\n" if error.caret else ""
    return invalid(f"spec.{field}", value if isinstance(value, str) else "", f"{error.reason}{place}{caret}")
