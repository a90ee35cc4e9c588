"""Any sequence of writes: versions, generations, target ids and conflicts against a model of a few lines."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.routing import RoutingTable
from headgate.objects.store.store import Store
from headgate_api.objects.errors import AlreadyExistsError, ObjectNotFoundError, StaleObjectError
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.objects.support import facts, trigger
from tests.support import times

NAMES = st.sampled_from(["a", "b", "c"])
FILTERS = st.sampled_from(["ce.type == 'x'", "ce.type == 'y'", "data.n > 1"])
RETRIES = st.sampled_from([1, 2])


@dataclass
class Known:
    cel: str
    retry: int
    generation: int
    version: str
    target: int
    needs: int


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store.open(self.folder / "control.db")
        self.other = Store.open(self.folder / "control.db")
        self.known: dict[str, Known] = {}
        self.targets = 0
        self.desired = 0
        self.active = 0
        self.stale = ["1"]
        self.tables: list[RoutingTable] = []

    def teardown(self) -> None:
        self.store.close()
        self.other.close()
        shutil.rmtree(self.folder)

    def document(self, name: str, cel: str, retry: int, version: str = "") -> dict[str, object]:
        document = trigger(name, filter={"expression": cel}, delivery={"retry": retry})
        if version:
            document["metadata"]["resourceVersion"] = version
        return document

    @rule(name=NAMES, cel=FILTERS, retry=RETRIES, elsewhere=st.booleans())
    def create(self, name: str, cel: str, retry: int, elsewhere: bool) -> None:
        admission = Admission(self.other if elsewhere else self.store)
        if name in self.known:
            with pytest.raises(AlreadyExistsError):
                admission.create(Kind.TRIGGER, self.document(name, cel, retry))
            return
        made = admission.create(Kind.TRIGGER, self.document(name, cel, retry)).obj
        self.targets += 1
        self.desired += 1
        version = made.metadata.resource_version
        self.known[name] = Known(cel, retry, 1, version, self.targets, self.desired)

    @rule(name=NAMES, cel=FILTERS, retry=RETRIES, elsewhere=st.booleans(), fresh=st.booleans())
    def replace(self, name: str, cel: str, retry: int, elsewhere: bool, fresh: bool) -> None:
        admission = Admission(self.other if elsewhere else self.store)
        key = ObjectKey(Kind.TRIGGER, "default", name)
        known = self.known.get(name)
        version = known.version if known is not None and fresh else self.stale[-1]
        document = self.document(name, cel, retry, version)
        if known is None:
            with pytest.raises(ObjectNotFoundError):
                admission.replace(key, document)
            return
        if not fresh:
            with pytest.raises(StaleObjectError):
                admission.replace(key, document)
            return
        made = admission.replace(key, document).obj
        if (cel, retry) != (known.cel, known.retry):
            self.stale.append(known.version)
            known.generation += 1
            assert int(made.metadata.resource_version) > int(known.version)
        if cel != known.cel:
            self.desired += 1
            known.needs = self.desired
        known.cel, known.retry, known.version = cel, retry, made.metadata.resource_version

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        key = ObjectKey(Kind.TRIGGER, "default", name)
        if name not in self.known:
            with pytest.raises(ObjectNotFoundError):
                self.store.delete(key)
            return
        self.stale.append(self.known.pop(name).version)
        self.store.delete(key)
        self.desired += 1

    @precondition(lambda self: self.active < self.desired)
    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        self.active = data.draw(st.integers(self.active, self.desired))
        self.other.counters.activate(self.active)

    @invariant()
    def store_says_what_the_model_says(self) -> None:
        for store in (self.store, self.other):
            assert store.desired_generation() == self.desired
            assert store.counters.all()["active_generation"] == self.active
            table = store.snapshot()
            assert table.generation == self.desired
            assert {target.name: target.id for target in table.targets.values()} == {
                f"default/{name}": known.target for name, known in self.known.items()
            }
            assert {target.name: target.delivery.retry for target in table.targets.values()} == {
                f"default/{name}": known.retry for name, known in self.known.items()
            }
        for before in self.tables[-5:]:
            ids = before.targets.keys() | table.targets.keys()
            others = {id_ for id_ in ids if before.targets.get(id_) != table.targets.get(id_)}
            assert others <= table.changed_since(before)
        self.tables.append(table)
        for row in facts(self.folder):
            known = self.known[row.obj.metadata.name]
            assert row.inputs.needs == known.needs
            assert row.obj.metadata.generation == known.generation
            # Never "True" while a filter is not in force, not even before the reconciler has looked.
            subscribed = next(one for one in row.obj.status.conditions if one.type == "Subscribed")
            assert subscribed.status != "True" or known.needs <= self.active


StoreMachine.TestCase.settings = settings(max_examples=times(10, 25), stateful_step_count=20)
TestStore = StoreMachine.TestCase
