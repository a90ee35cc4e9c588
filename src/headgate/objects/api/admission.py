"""Admission: validate a document, then create, replace, patch or apply its object.

The API, manifests and tests all come in here; the store behind it trusts what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, TypeAlias

from headgate.auth.authorizer import Authorizer
from headgate.auth.routes import CATALOGUE, READ
from headgate.auth.user import User
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.advice import SeenNames, UnseenNames
from headgate.objects.api.grants import Grants
from headgate.objects.api.validator import (
    Validated,
    Validator,
    ceiling_warning,
    plan_of,
    with_defaults,
    without_filter,
)
from headgate.objects.kinds.decode import Decoded, check_shape, decode_object
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.managers import (
    MANIFESTS,
    Manager,
    Managers,
    WriteOptions,
    applied,
    given_managers,
    made_by,
    managers_of,
    owned,
    updated,
    with_metadata,
)
from headgate.objects.kinds.patches import DocumentChange, change_of, patched
from headgate.objects.kinds.validate import (
    change_causes,
    refuse_erased_filter,
)
from headgate.objects.store.store import Store
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.objects.bodies import MERGE_PATCH, FieldValidation, kind_of
from headgate_api.objects.errors import (
    AlreadyExistsError,
    InvalidObjectError,
    MalformedObjectError,
    ObjectNotFoundError,
    StaleObjectError,
)
from headgate_api.objects.kinds import (
    Kind,
    Object,
    ObjectKey,
    Routed,
    key_of,
)

_LOCAL: Final = UrlPolicy()
_PLAIN: Final = WriteOptions()
WRITE_ATTEMPTS_MAX: Final = 20
"""How often a write without resourceVersion is retried when another writer came between."""
_Made: TypeAlias = "tuple[Decoded, CompiledFilter | None, Managers | None]"


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of a write: `created`, `configured` or `unchanged`; `warnings` are for `Warning` headers."""

    obj: Object
    warnings: tuple[str, ...] = ()
    outcome: str = "configured"


class Admission:
    """The only way of objects into the store. Every method may block: call it in a thread.

    The methods that write raise InvalidInputError for what is no valid object or changes an immutable field. Without
    `grants` authors may give away everything.
    """

    def __init__(
        self,
        store: Store,
        policy: UrlPolicy = _LOCAL,
        grants: Grants | None = None,
        *,
        on_kafka: bool = False,
    ) -> None:
        self.store = store
        self.validator = Validator(store.compiler, policy, on_kafka)
        self._grants = grants or Grants(store, policy)

    def create(
        self, kind: Kind, document: object, how: WriteOptions = _PLAIN, *, namespace: str | None = None
    ) -> Admitted:
        """Store a new object; without a namespace from the request it is the document's, else `default`."""
        return self._create(*self.validator.validate(kind, document, namespace, None, how.validation), None, how)

    def _create(
        self, decoded: Decoded, plan: CompiledFilter | None, managers: Managers | None, how: WriteOptions
    ) -> Admitted:
        obj = self.created(decoded, managers, how.by)
        plan = self.below_ceiling(obj, plan)
        warnings = decoded.warnings + ceiling_warning(plan)
        return Admitted(self.store.create(obj, plan, dry_run=how.dry_run), warnings, "created")

    def created(self, decoded: Decoded, managers: Managers | None, by: Manager) -> Object:
        """An object as it is to be created; without managers all its fields are the writer's."""
        if decoded.obj.metadata.resource_version:
            raise MalformedObjectError("resourceVersion should not be set on objects to be created")
        self._grants.judge(by.user, None, decoded.obj)
        obj = self._grants.signed(by.user, None, decoded.obj)
        return made_by(obj, by, self.store.now()) if managers is None else owned(obj, managers)

    def replace(self, key: ObjectKey, document: object, how: WriteOptions = _PLAIN) -> Admitted:
        """Put a whole object in the place of the stored one; a document that erases a filter unseen is refused."""

        def made(old: Object) -> _Made:
            decoded, plan = self._admitted(key, document, how)
            refuse_erased_filter(old, decoded.obj, document)
            return decoded, plan, None

        return self._change(key, made, how)

    def patch(self, key: ObjectKey, change: DocumentChange, how: WriteOptions = _PLAIN) -> Admitted:
        """Change the stored object by a patch, see `patches.change_of`."""
        return self._change(key, lambda old: (*self._admitted(key, patched(old, change), how), None), how)

    def merge(self, key: ObjectKey, patch: object) -> Admitted:
        return self.patch(key, change_of(MERGE_PATCH, patch))

    def server_side_apply(self, key: ObjectKey, config: object, how: WriteOptions) -> Admitted:
        """Make the fields of a configuration the object's; the object is created when there is none.

        What the manager applied before and leaves out now goes.
        """
        check_shape(config)
        if not isinstance(config, Mapping):
            raise MalformedObjectError("the body must be an object")

        def made(old: Object) -> _Made:
            found = applied(old, config, how.by, self.store.now())
            return *self._admitted(key, found.document, how), found.managers

        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                return self._change(key, made, how)
            except ObjectNotFoundError:
                found = applied(None, config, how.by, self.store.now())
            self._grants.judge_create(how.by.user, key)
            with suppress(AlreadyExistsError):  # somebody else was faster: apply to what he made
                return self._create(*self._admitted(key, found.document, how), found.managers, how)
        raise AlreadyExistsError(key.kind, key.name)

    def check(self, document: object, *, namespace: str | None = None) -> ObjectKey:
        """Checks a document as far as that needs no store; says where it would be stored."""
        kind = kind_of(document)
        meta = self.validator.validate(kind, document, namespace, None, FieldValidation.STRICT)[0].obj.metadata
        return ObjectKey(kind, meta.namespace, meta.name)

    def review(
        self, kind: Kind, document: Mapping[str, object], before: object, *, namespace: str | None = None
    ) -> tuple[str, ...]:
        """Judge an object that another store keeps, beside the one that it replaces; unknown fields get a warning."""
        decoded, _ = self.validator.validate(kind, document, namespace, None, FieldValidation.WARN)
        if before is not None:
            try:
                old = decode_object(kind, before, field_validation=FieldValidation.IGNORE).obj
            except InvalidInputError:
                return decoded.warnings  # older than the rules: nothing to compare with
            if causes := change_causes(with_defaults(old), decoded.obj):
                raise InvalidObjectError(causes, kind=kind, name=decoded.obj.metadata.name)
        return decoded.warnings

    def apply(self, document: object, *, namespace: str | None = None, dry_run: bool = False) -> Admitted:
        """Create the object, or give the stored one this spec, and these labels and annotations beside its own."""
        how = WriteOptions(MANIFESTS, dry_run=dry_run)
        decoded, plan = self.validator.validate(kind_of(document), document, namespace, None, how.validation)
        try:
            return self._change(key_of(decoded.obj), lambda old: (kept_of(old, decoded), plan, None), how)
        except ObjectNotFoundError:
            return self._create(decoded, plan, None, how)

    def _change(self, key: ObjectKey, make: Callable[[Object], _Made], how: WriteOptions) -> Admitted:
        """Write what `make` makes of the stored object, again when another writer came between.

        It makes the object, its plan, and its managers where they are not those of an update.
        """
        for attempt in range(WRITE_ATTEMPTS_MAX):
            old = self.store.get(key)
            decoded, plan, managers = make(old)
            obj = self.changed(old, decoded, managers, how.by)
            plan = self.below_ceiling(obj, plan)
            try:
                new = self.store.replace(obj, plan, dry_run=how.dry_run)
            except StaleObjectError:
                if is_theirs(obj, old) or attempt == WRITE_ATTEMPTS_MAX - 1:
                    raise
                continue
            return Admitted(new, decoded.warnings + ceiling_warning(plan), outcome_of(old, new))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def changed(self, old: Object, decoded: Decoded, managers: Managers | None, by: Manager) -> Object:
        """An object as it is to replace the stored one, and no other; without managers it is an update."""
        if managers is None:
            base = given_managers(decoded.managed_fields)
            managers = updated(managers_of(old) if base is None else base, old, decoded.obj, by, self.store.now())
        self._grants.judge(by.user, old, decoded.obj)
        obj = owned(self._grants.signed(by.user, old, decoded.obj), managers)
        version = obj.metadata.resource_version or old.metadata.resource_version
        return with_metadata(obj, resource_version=version)

    def below_ceiling(self, obj: Object, plan: CompiledFilter | None) -> CompiledFilter | None:
        """The plan of a signed object, below the ceiling of the right by which it gets events."""
        ceiling = self._grants.ceiling_of(obj) if isinstance(obj, Routed) else ""
        return plan_of(obj, self.store.compiler, ceiling) if ceiling and isinstance(obj, Routed) else plan

    def _admitted(self, key: ObjectKey, document: object, how: WriteOptions) -> Validated:
        return self.validator.validate(key.kind, document, key.namespace, key.name, how.validation)


def kept_of(old: Object, decoded: Decoded) -> Decoded:
    """An applied object with the labels, annotations and finalizers of the stored one that it does not name."""
    meta = decoded.obj.metadata
    kept = with_metadata(
        decoded.obj,
        labels=old.metadata.labels | meta.labels,
        annotations=without_filter(old.metadata.annotations) | meta.annotations,
        finalizers=tuple(dict.fromkeys((*old.metadata.finalizers, *meta.finalizers))),
    )
    return replace(decoded, obj=with_defaults(kept))


def is_theirs(obj: Object, old: Object) -> bool:
    """Whether a client has named a uid or resourceVersion that the stored object has not."""
    given, there = obj.metadata, old.metadata
    return given.uid not in ("", there.uid) or given.resource_version != there.resource_version


def outcome_of(old: Object | None, new: Object) -> str:
    """What a write has done, in a word."""
    if old is None:
        return "created"
    # Not the resourceVersion: a status may have been written in between.
    said = attrgetter("generation", "labels", "annotations")
    return "unchanged" if said(new.metadata) == said(old.metadata) else "configured"


# --- what is tried --------------------------------------------------------------------------------
# A dry run is also told which names of its filter no event has had. A write is not: it would be a look at the log.


def nothing_seen(_: ObjectKey, __: str) -> SeenNames:
    """Where nobody reads the log: of no broker and no ceiling any name is known."""
    return SeenNames()


class TriedFilters:
    """Looks for misspelt names in filters that are only tried. May block: call it in a thread.

    `seen` gives the names that the events of a broker below a ceiling (CEL) have had; HeadgateError where it cannot.
    Who may not read the broker's catalogue is told nothing.
    """

    def __init__(
        self, store: Store, authorizer: Authorizer, seen: Callable[[ObjectKey, str], SeenNames] = nothing_seen
    ) -> None:
        self._store = store
        self._authorizer = authorizer
        self._seen = seen

    def warnings(self, user: User, objects: Iterable[Object]) -> Iterator[tuple[str, ...]]:
        """Sentences on each object; a broker is asked once."""
        known: dict[str, UnseenNames | None] = {}
        for obj in objects:
            if not isinstance(obj, Routed):
                yield ()
                continue
            if obj.broker_key not in known:
                known[obj.broker_key] = self._of_broker(user, obj.broker_key)
            unseen = known[obj.broker_key]
            found = () if unseen is None else unseen.of(plan_of(obj, self._store.compiler))
            yield tuple(one.message for one in found)

    def _of_broker(self, user: User, broker: str) -> UnseenNames | None:
        if not self._authorizer.allowed(user, CATALOGUE.on(broker)).allowed:
            return None
        namespace, _, name = broker.partition("/")
        try:
            ceiling = self._authorizer.ceiling(user, READ.on(broker))
            return UnseenNames(self._seen(ObjectKey(Kind.BROKER, namespace, name), ceiling))
        except HeadgateError:  # there is no such broker, or its log cannot be read now
            return None
