"""Several objects applied together: each judged as alone, their writes in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from headgate.control.admission import WRITE_ATTEMPTS_MAX, Admission, Admitted, is_theirs, kept_of, outcome_of
from headgate.control.bodies import FieldValidation
from headgate.control.decode import Decoded
from headgate.control.errors import AlreadyExistsError, ObjectNotFoundError, StaleObjectError
from headgate.control.filter_causes import refuse_erased_filter
from headgate.control.grants import Grants
from headgate.control.managers import Manager
from headgate.control.objects import Kind, Object, ObjectKey, key_of
from headgate.control.writes import Write
from headgate.errors import HeadgateError
from headgate.filter.compile.plan import CompiledFilter

Result: TypeAlias = "Admitted | HeadgateError"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A document that is admitted and not yet written.

    Attributes:
        place: Among the others.
        key: Names its object.
        document: As it came.
        decoded: The object.
        plan: Its compiled filter.
        attempt: How often it has been written with this one.
    """

    place: int
    key: ObjectKey
    document: object
    decoded: Decoded
    plan: CompiledFilter | None
    attempt: int = 1


class TogetherApply:
    """Creates triggers or subscriptions of a namespace, or gives those that are there what documents say.

    Labels, annotations and finalizers that a document does not name are kept. Who applies may change every object of
    the kind in the namespace, which the gate has seen to; whether he may create is judged here, object by object.
    May block: call it in a thread.

    Args:
        admission: Judges the objects.
        grants: Judges their author.
    """

    def __init__(self, admission: Admission, grants: Grants) -> None:
        self._admission = admission
        self._store = admission.store
        self._grants = grants

    def apply(
        self,
        kind: Kind,
        documents: Sequence[object],
        *,
        namespace: str,
        by: Manager,
        validation: FieldValidation = FieldValidation.STRICT,
        dry_run: bool = False,
    ) -> list[Result]:
        """Apply documents in their order.

        Args:
            kind: Of all of them, one of which no other object's admission depends.
            documents: Decoded JSON.
            namespace: Of all of them.
            by: Who writes.
            validation: What unknown fields do.
            dry_run: Do everything, store nothing.

        Returns:
            Of each document what became of it, or the error that it alone would have had.

        Raises:
            UnavailableError: Nothing can be written now; objects before may have been.
        """
        results: dict[int, Result] = {}
        waiting: list[_Waiting] = []
        for place, document in enumerate(documents):
            try:
                decoded, plan = self._admission.admit(kind, document, namespace, None, validation)
                waiting.append(_Waiting(place, key_of(decoded.obj), document, decoded, plan))
            except HeadgateError as error:
                results[place] = _of_one(error)
        while waiting:
            first = {one.key: one for one in reversed(waiting)}  # of a name that is there twice the second one waits
            turn = sorted(first.values(), key=lambda one: one.place)
            behind = [one for one in waiting if first[one.key] is not one]
            again = self._write(turn, results, by, dry_run=dry_run)
            waiting = sorted([*again, *behind], key=lambda one: one.place)
        return [results[place] for place in range(len(documents))]

    def _write(
        self, turn: Sequence[_Waiting], results: dict[int, Result], by: Manager, *, dry_run: bool
    ) -> list[_Waiting]:
        """Writes documents of different names; returns those of which another writer came between read and write."""
        there = self._store.found(one.key for one in turn)
        ready: list[tuple[_Waiting, Object | None, Write]] = []
        for one in turn:
            old = there.get(one.key)
            try:
                ready.append((one, old, Write(self._made(one, old, by), one.plan, old is None)))
            except HeadgateError as error:
                results[one.place] = _of_one(error)
        stored = self._store.write_all([write for _, _, write in ready], dry_run=dry_run) if ready else []
        again = []
        for (one, old, write), new in zip(ready, stored, strict=True):
            if not isinstance(new, HeadgateError):
                results[one.place] = Admitted(new, one.decoded.warnings, outcome_of(old, new))
            elif one.attempt < WRITE_ATTEMPTS_MAX and _came_between(new, old, write.obj):
                again.append(replace(one, attempt=one.attempt + 1))
            else:
                results[one.place] = new
        return again

    def _made(self, one: _Waiting, old: Object | None, by: Manager) -> Object:
        if old is None:
            self._grants.judge_create(by.user, one.key)
            return self._admission.created(one.decoded, None, by)
        refuse_erased_filter(old, one.decoded.obj, one.document)
        return self._admission.changed(old, kept_of(old, one.decoded), None, by)


def _of_one(error: HeadgateError) -> HeadgateError:
    """An error that concerns one object.

    Raises:
        HeadgateError: It concerns all of them: later the same may succeed.
    """
    if error.retriable:
        raise error
    return error


def _came_between(error: HeadgateError, old: Object | None, obj: Object) -> bool:
    """Whether a write failed because its object has been made, changed or deleted since it was read."""
    if old is None:
        return isinstance(error, AlreadyExistsError)
    return isinstance(error, ObjectNotFoundError) or (isinstance(error, StaleObjectError) and not is_theirs(obj, old))
