from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import SCAN_CANDIDATE, CompiledFilter
from headgate.objects.api import bootstrap
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.managers import WriteOptions
from headgate.objects.kinds.routing import TargetReport
from headgate.objects.store import plans, targets
from headgate.objects.store.plans import FilterCompiler, PlanDecoder, encode_plan
from headgate.objects.store.store import Store
from headgate_api.errors import ConflictError, InvalidInputError
from headgate_api.objects.errors import AlreadyExistsError, ExpiredError, ObjectNotFoundError, StaleObjectError
from headgate_api.objects.kinds import Broker, Kind, ObjectKey, Trigger
from tests.objects.support import broker, facts, stored_brokers, trigger
from tests.support import times

T1 = ObjectKey(Kind.TRIGGER, "default", "t1")
GOLD = {"expression": "ce.type == 'order' && data.tier == 'gold'"}
LISTED = [{"prefix": {"type": "a."}}, {"not": {"exact": {"tenant": "acme"}}}]


def test_the_default_broker_is_there_from_the_start_and_only_once(tmp_path: Path) -> None:
    first = Store.open(tmp_path / "control.db")
    uid = first.get(ObjectKey(Kind.BROKER, "default", "default")).metadata.uid
    first.close()
    again = Store.open(tmp_path / "control.db")
    assert [one.metadata.uid for one in stored_brokers(again)] == [uid]
    assert again.snapshot().brokers == {"default/default": f"default/default/{uid}"}
    again.close()


def test_a_deleted_default_broker_stays_deleted(tmp_path: Path) -> None:
    first = Store.open(tmp_path / "control.db")
    first.delete(ObjectKey(Kind.BROKER, "default", "default"))
    first.close()
    again = Store.open(tmp_path / "control.db")
    assert stored_brokers(again) == []
    again.close()


def test_create_gives_what_the_server_gives(admission: Admission) -> None:
    made = admission.create(Kind.TRIGGER, trigger()).obj.metadata
    assert made.uid
    assert made.generation == 1
    assert int(made.resource_version) == admission.store.counters.version()
    assert made.creation_timestamp.endswith("Z")
    with pytest.raises(AlreadyExistsError):
        admission.create(Kind.TRIGGER, trigger())


def test_generation_moves_with_spec_only(admission: Admission) -> None:
    admission.create(Kind.TRIGGER, trigger())
    labelled = admission.merge(T1, {"metadata": {"labels": {"a": "b"}}}).obj.metadata
    assert (labelled.generation, labelled.labels["a"]) == (1, "b")
    changed = admission.merge(T1, {"spec": {"filter": GOLD}}).obj.metadata
    assert changed.generation == 2


def test_what_says_the_same_is_not_written(admission: Admission) -> None:
    made = admission.create(Kind.TRIGGER, trigger(filter=GOLD)).obj
    same = admission.replace(T1, trigger(filter=GOLD))
    assert same.obj == made
    assert same.outcome == "unchanged"
    assert admission.store.counters.version() == int(made.metadata.resource_version)


def test_a_stale_resource_version_is_a_conflict(admission: Admission) -> None:
    made = admission.create(Kind.TRIGGER, trigger()).obj
    admission.merge(T1, {"metadata": {"labels": {"a": "b"}}})
    stale = trigger(filter=GOLD)
    stale["metadata"]["resourceVersion"] = made.metadata.resource_version
    with pytest.raises(ConflictError, match="the object has been modified"):
        admission.replace(T1, stale)
    with pytest.raises(StaleObjectError):
        admission.merge(T1, {"metadata": {"resourceVersion": made.metadata.resource_version}})
    with pytest.raises(StaleObjectError, match="UID in precondition"):
        admission.store.delete(T1, uid="another")


def test_a_dry_run_leaves_no_trace(admission: Admission) -> None:
    before = admission.store.counters.all()
    made = admission.create(Kind.TRIGGER, trigger(filter=GOLD), WriteOptions(dry_run=True)).obj
    assert made.metadata.uid
    assert admission.store.counters.all() == before
    with pytest.raises(ObjectNotFoundError):
        admission.store.get(T1)


def test_target_ids_are_never_used_again(admission: Admission) -> None:
    admission.create(Kind.TRIGGER, trigger())
    (first,) = admission.store.snapshot().targets.values()
    admission.store.delete(T1)
    assert admission.store.snapshot().targets == {}
    admission.create(Kind.TRIGGER, trigger())
    (second,) = admission.store.snapshot().targets.values()
    assert second.id > first.id > 0


def test_only_another_filter_takes_a_generation(admission: Admission) -> None:
    store = admission.store
    admission.create(Kind.TRIGGER, trigger(filter=GOLD))
    before, table = store.desired_generation(), store.snapshot()
    admission.merge(T1, {"spec": {"subscriber": {"uri": "http://127.0.0.1:9/other"}}})
    admission.merge(T1, {"spec": {"delivery": {"retry": 3}}})
    admission.create(Kind.BROKER, broker("b2"))
    assert store.desired_generation() == before
    after = store.snapshot()
    assert after.version > table.version
    (target,) = after.targets.values()
    assert target.subscriber_uri.endswith("/other")
    assert target.delivery.retry == 3
    # The same meaning, written otherwise, is the same filter.
    admission.merge(T1, {"spec": {"filter": {"expression": 'ce.type=="order" && data.tier=="gold"'}}})
    assert store.desired_generation() == before
    admission.merge(T1, {"spec": {"filter": {"expression": "ce.type == 'other'"}}})
    assert store.desired_generation() == before + 1
    store.delete(T1)
    assert store.desired_generation() == before + 2


def test_the_snapshot_is_what_a_new_process_would_read(admission: Admission, tmp_path: Path) -> None:
    for number in range(20):
        admission.create(Kind.TRIGGER, trigger(f"t{number}", filter={"expression": f"ce.type == 'x{number}'"}))
    admission.store.snapshot()
    admission.store.delete(T1)
    admission.create(Kind.BROKER, broker("b2", delivery={"retry": 2}))
    admission.create(Kind.TRIGGER, trigger("late", broker="b2", filter=GOLD))
    admission.merge(ObjectKey(Kind.TRIGGER, "default", "t2"), {"spec": {"filter": GOLD}})
    admission.merge(ObjectKey(Kind.BROKER, "default", "default"), {"spec": {"delivery": {"retry": 1}}})
    other = Store.open(tmp_path / "control.db")
    assert admission.store.snapshot() == other.snapshot()
    other.close()


def test_a_table_tells_which_targets_are_not_as_in_an_earlier_one(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "ROUTING_STEPS_MAX", 3)
    store = admission.store
    for number in range(20):
        admission.create(Kind.TRIGGER, trigger(f"t{number}", filter={"expression": f"ce.type == 'x{number}'"}))
    tables = [store.snapshot()]
    admission.merge(ObjectKey(Kind.TRIGGER, "default", "t2"), {"spec": {"filter": GOLD}})
    tables.append(store.snapshot())
    store.delete(T1)
    admission.create(Kind.TRIGGER, trigger("late", filter=GOLD))
    tables.append(store.snapshot())
    store.counters.activate(tables[-1].generation)
    admission.merge(ObjectKey(Kind.TRIGGER, "default", "t3"), {"spec": {"subscriber": {"uri": "http://other/"}}})
    tables.append(store.snapshot())
    ids = {one.name.partition("/")[2]: id_ for table in tables for id_, one in table.targets.items()}
    assert tables[3].changed_since(tables[3]) == set()
    assert tables[3].changed_since(tables[2]) == {ids["t3"]}
    assert tables[3].changed_since(tables[1]) == {ids["t3"], ids["t1"], ids["late"]}
    assert tables[3].changed_since(tables[0]) == {ids["t3"], ids["t1"], ids["late"], ids["t2"]}
    assert tables[1].changed_since(tables[0]) == {ids["t2"]}
    assert tables[3].changed_since(None) == tables[3].targets.keys()
    default = ObjectKey(Kind.BROKER, "default", "default")
    admission.merge(default, {"spec": {"delivery": {"retry": 1}}})  # which concerns all
    everything = tables[3].targets.keys() | tables[0].targets.keys()
    tables.append(store.snapshot())
    assert tables[4].changed_since(tables[3]) == tables[3].targets.keys()
    assert tables[4].changed_since(tables[0]) == everything
    for number in range(4):
        admission.merge(ObjectKey(Kind.TRIGGER, "default", "t5"), {"spec": {"delivery": {"retry": number}}})
        tables.append(store.snapshot())
    assert tables[8].changed_since(tables[5]) == {ids["t5"]}
    assert tables[8].changed_since(tables[4]) == tables[8].targets.keys(), "more steps ago than are known"


def test_an_unchanged_store_answers_with_the_same_table(admission: Admission) -> None:
    admission.create(Kind.TRIGGER, trigger())
    table = admission.store.snapshot()
    admission.store.counters.activate(1)
    admission.store.reports.report([TargetReport(1, 1, "boom", "s 1")])
    assert admission.store.snapshot() is table


def test_delivery_of_the_trigger_replaces_the_brokers_as_a_whole(admission: Admission) -> None:
    admission.create(Kind.BROKER, broker("b", delivery={"retry": 5, "timeout": "PT7S", "backoffPolicy": "linear"}))
    admission.create(Kind.TRIGGER, trigger("own", broker="b", delivery={"backoffDelay": "PT2S"}))
    admission.create(Kind.TRIGGER, trigger("inherits", broker="b"))
    admission.create(Kind.TRIGGER, trigger("neither"))
    rules = {target.name: target.delivery for target in admission.store.snapshot().targets.values()}
    own, inherits, neither = (rules[f"default/{name}"] for name in ("own", "inherits", "neither"))
    assert (own.retry, own.backoff_delay_s, own.timeout_s) == (None, 2.0, 30.0)
    assert (inherits.retry, inherits.timeout_s, inherits.backoff_policy) == (5, 7.0, "linear")
    assert (neither.retry, neither.backoff_policy, neither.backoff_delay_s) == (None, "exponential", 0.2)
    admission.merge(ObjectKey(Kind.BROKER, "default", "b"), {"spec": {"delivery": {"retry": 6}}})
    rules = {target.name: target.delivery for target in admission.store.snapshot().targets.values()}
    assert rules["default/inherits"].retry == 6
    assert rules["default/own"] == own


def test_a_subscriber_that_is_a_broker_of_ours_has_its_address(admission: Admission) -> None:
    ref = {"kind": "Broker", "apiVersion": "eventing.knative.dev/v1", "name": "other", "namespace": "ns2"}
    admission.create(Kind.TRIGGER, trigger(subscriber={"ref": ref}))
    admission.store.public_url.set("http://gate:1234/")
    (target,) = admission.store.snapshot().targets.values()
    assert target.subscriber_uri == "http://gate:1234/ns2/other"


def test_a_subscriber_that_only_kubernetes_knows_is_not_routed(admission: Admission) -> None:
    ref = {"kind": "Service", "apiVersion": "v1", "name": "svc"}
    before = admission.store.desired_generation()
    admission.create(Kind.TRIGGER, trigger(subscriber={"ref": ref}))
    assert admission.store.snapshot().targets == {}
    assert admission.store.desired_generation() == before
    admission.merge(T1, {"spec": {"subscriber": {"ref": None, "uri": "http://127.0.0.1:9/"}}})
    assert len(admission.store.snapshot().targets) == 1
    assert admission.store.desired_generation() == before + 1


@pytest.mark.parametrize(
    "filter_object",
    [
        None,
        GOLD,
        {"expression": "data.n > 18446744073709551614u || data.n in [1, 2.5, 'x'] || has(data.b.c)"},
        {"expression": "ce.type.startsWith('a') && !(data.ok == true) && data.nothing == null"},
        {"expression": "data.items.exists(i, i > 3)"},
        {"attributes": {"type": "a", "source": ""}},
    ],
)
def test_plans_survive_the_file(filter_object: dict[str, object] | None) -> None:
    plan = compile_filter(filter_object)
    read = PlanDecoder().decode(encode_plan(plan))
    assert read == plan
    types = [[type(constant) for constant in (*row.key, *row.constants)] for row in plan.rows]
    assert [[type(constant) for constant in (*row.key, *row.constants)] for row in read.rows] == types


def recompile_all(store: Store) -> None:
    after: int | None = 0
    while after is not None:
        after = store.plans.recompile(after)
    assert store.plans.left() == 0


def test_a_restart_compiles_nothing_and_a_new_compiler_everything(tmp_path: Path) -> None:
    calls: list[object] = []

    def one(filter_object: object, filters: object) -> CompiledFilter:
        calls.append(filters or filter_object)
        return compile_filter(filter_object, filters)  # type: ignore[arg-type]

    def picky(filter_object: object, filters: object) -> CompiledFilter:
        if GOLD in (filter_object, *filters):  # type: ignore[misc]
            raise InvalidInputError("no gold any more")
        return compile_filter({"expression": "ce.id == 'other'"})

    path = tmp_path / "control.db"
    store = Store.open(path, compiler=FilterCompiler(1, one))
    admission = Admission(store)
    admission.create(Kind.TRIGGER, trigger("gold", filter=GOLD))
    admission.create(Kind.TRIGGER, trigger("plain"))
    admission.create(Kind.TRIGGER, trigger("listed", filters=LISTED))
    table = store.snapshot()
    store.close()
    calls.clear()
    store = Store.open(path, compiler=FilterCompiler(1, one))
    assert store.snapshot() == table
    assert calls == []
    store.close()
    # Compiled anew with the same result: nothing moves.
    store = Store.open(path, compiler=FilterCompiler(2, one))
    assert calls == []
    recompile_all(store)
    assert calls == [GOLD, None, tuple(LISTED)]
    assert store.snapshot() == table
    store.close()
    # Compiled anew with another result: one generation; what no longer compiles is not matched by a stale plan.
    store = Store.open(path, compiler=FilterCompiler(3, picky))
    recompile_all(store)
    after = store.snapshot()
    assert after.generation == table.generation + 1
    assert [target.filter.cel for target in after.targets.values()] == ['ce.id == "other"'] * 2
    store.close()


def plan_of_another_version(path: Path) -> None:
    """Makes every stored plan one that this version cannot read but for its text."""
    with sqlite3.connect(path) as connection:
        for target, plan in connection.execute("SELECT id, plan FROM targets").fetchall():
            older = msgspec.msgpack.encode([msgspec.msgpack.decode(plan)[0], {"rows": "of another kind"}])
            connection.execute(
                "UPDATE targets SET plan = ?, plan_version = 0, compiler = 0 WHERE id = ?", (older, target)
            )
    connection.close()


def test_rows_of_another_plan_version_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    with contextlib.closing(Store.open(path)) as store:
        for number in range(3):
            Admission(store).create(Kind.TRIGGER, trigger(f"t{number}", filter=GOLD))
        before = store.snapshot()
    plan_of_another_version(path)
    with contextlib.closing(Store.open(path)) as store:
        table = store.snapshot()
        assert (table.plans_outdated, table.generation) == (3, before.generation)
        for old, new in zip(before.targets.values(), table.targets.values(), strict=True):
            assert old.filter.cel == new.filter.cel
            assert [row.signature for row in new.filter.rows] == [SCAN_CANDIDATE]
            assert new.filter.sure_bytes == 0
        # A trigger that is written again is up to date at once.
        Admission(store).replace(T1, trigger("t1", filter={"cel": "ce.id == 'x'"}))
        assert store.snapshot().plans_outdated == 2
        recompile_all(store)
        after = store.snapshot()
        assert after.plans_outdated == 0
        first, second, third = after.targets.values()
        assert [first.filter, third.filter] == [one.filter for one in [*before.targets.values()][::2]]
        assert second.filter.cel == 'ce.id == "x"'


def test_filters_are_compiled_anew_in_slices_beside_other_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "RECOMPILED_FILTERS_MAX", 2)
    path = tmp_path / "control.db"
    with contextlib.closing(Store.open(path)) as store:
        for number in range(5):
            Admission(store).create(Kind.TRIGGER, trigger(f"t{number}", filter=GOLD))
    plan_of_another_version(path)
    with contextlib.closing(Store.open(path)) as store, contextlib.closing(Store.open(path)) as other:
        after, left = 0, [store.plans.left()]
        while (done := store.plans.recompile(after)) is not None:
            after = done
            left.append(store.plans.left())
            assert other.snapshot().plans_outdated == left[-1]
            Admission(other).create(Kind.TRIGGER, trigger(f"new{after}"))
            if len(left) == 2:  # deleted, and written, before their turn
                other.delete(ObjectKey(Kind.TRIGGER, "default", "t2"))
        assert left == [5, 3, 0]


def test_what_is_written_while_it_is_compiled_anew_stays(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    with contextlib.closing(Store.open(path)) as other:
        Admission(other).create(Kind.TRIGGER, trigger("t1", filter=GOLD))

        def compile_late(filter_object: object, filters: object) -> CompiledFilter:
            Admission(other).replace(T1, trigger("t1", filter={"cel": "ce.id == 'new'"}))
            return compile_filter(filter_object, filters)  # type: ignore[arg-type]

        plan_of_another_version(path)
        with contextlib.closing(Store.open(path, compiler=FilterCompiler(7, compile_late))) as store:
            store.plans.recompile()
        assert [one.filter.cel for one in other.snapshot().targets.values()] == ['ce.id == "new"']


def test_the_front_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "RECOMPILED_FILTERS_MAX", 2)
    monkeypatch.setattr(bootstrap, "RECOMPILED_FILTERS_MAX", 2)
    path, notes = tmp_path / "control.db", list[str]()
    with contextlib.closing(Store.open(path)) as store:
        for number in range(3):
            Admission(store).create(Kind.TRIGGER, trigger(f"t{number}"))
        asyncio.run(bootstrap.recompile_all(store, notes.append))
        assert notes == []
        plan_of_another_version(path)
        asyncio.run(bootstrap.recompile_all(store, notes.append))
        assert notes == [*(f"compiles stored filters anew: {done} of 3 done" for done in (0, 2, 3)), ""]
        assert store.plans.left() == 0


def test_opening_waits_for_nobody_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    Store.open(path).close()
    plan_of_another_version(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with contextlib.closing(Store.open(path)) as store:  # who waits for the writer fails: it never ends
            store.snapshot()
        writer.execute("ROLLBACK")


def test_active_generation_only_grows_and_never_passes_the_desired(admission: Admission) -> None:
    store = admission.store
    admission.create(Kind.TRIGGER, trigger())
    admission.create(Kind.TRIGGER, trigger("t2"))
    store.counters.activate(2)
    store.counters.activate(1)
    assert store.counters.all()["active_generation"] == 2
    with pytest.raises(ValueError, match="newer"):
        store.counters.activate(3)


def test_data_version_moves_with_every_commit_of_this_and_other_connections(
    admission: Admission, tmp_path: Path
) -> None:
    seen = {admission.store.data_version()}
    assert admission.store.data_version() in seen
    admission.create(Kind.TRIGGER, trigger())
    seen.add(admission.store.data_version())
    assert len(seen) == 2
    other = Store.open(tmp_path / "control.db")
    other.counters.activate(1)
    seen.add(admission.store.data_version())
    assert len(seen) == 3
    other.close()


def test_reports_add_up_and_end_with_their_filter(admission: Admission, tmp_path: Path) -> None:
    store = admission.store
    admission.create(Kind.TRIGGER, trigger(filter=GOLD))
    store.reports.report([TargetReport(1, 2, "first", "s 1"), TargetReport(99, 1, "gone", "s 2")])
    store.reports.report([TargetReport(1, 2, "last", "s 3")])
    store.reports.report([TargetReport(1, 1, "", "")])
    (row,) = facts(tmp_path)
    found = row.inputs.found
    assert (found.filter_errors, found.last_error, found.last_error_event) == (5, "last", "s 3")
    admission.merge(T1, {"spec": {"filter": {"expression": "ce.type == 'a'"}}})
    (row,) = facts(tmp_path)
    assert row.inputs.found.filter_errors == 0


def test_changes_are_told_in_order_and_expire(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    store = admission.store
    start = store.counters.version()
    admission.create(Kind.TRIGGER, trigger())
    admission.merge(T1, {"metadata": {"labels": {"a": "b"}}})
    store.delete(T1)
    changes = store.changes(Kind.TRIGGER, start)
    assert [change.type for change in changes.items] == ["ADDED", "MODIFIED", "DELETED"]
    assert [change.version for change in changes.items] == [start + 1, start + 2, start + 3]
    assert changes.version == store.counters.version()
    assert store.changes(Kind.TRIGGER, changes.version).items == ()
    assert store.changes(Kind.BROKER, start).items == ()
    with pytest.raises(ExpiredError):
        store.changes(Kind.TRIGGER, store.counters.version() + 1)
    monkeypatch.setattr("headgate.objects.store.history.WATCH_EVENTS_MAX", 5)
    monkeypatch.setattr("headgate.objects.store.history.TRIM_SLACK", 2)
    for number in range(20):
        admission.create(Kind.BROKER, broker(f"b{number}"))
    with pytest.raises(ExpiredError):
        store.changes(Kind.TRIGGER, start)
    kept = store.changes(Kind.BROKER, store.counters.version() - 5)
    assert len(kept.items) == 5


def test_history_is_bounded_in_bytes_too(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.objects.store.history.WATCH_BYTES_MAX", 4_000)
    for number in range(40):
        admission.create(Kind.BROKER, broker(f"b{number}"))
    counters = admission.store.counters.all()
    assert 0 < counters["history_bytes"] <= 4_000
    assert counters["history_floor"] > 0


def test_many_threads_write_without_losing_a_change(admission: Admission) -> None:
    admission.create(Kind.TRIGGER, trigger())

    def work(number: int) -> None:
        for step in range(10):
            admission.merge(T1, {"metadata": {"labels": {f"l{number}-{step}": "x"}}})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    labels = admission.store.get(T1).metadata.labels
    assert len([name for name in labels if name.startswith("l")]) == 40


_WRITER = """
import sys
from pathlib import Path
from headgate.objects.api.admission import Admission
from headgate_api.objects.kinds import Kind
from headgate.objects.store.store import Store
from tests.objects.support import trigger
store = Store.open(Path(sys.argv[1]))
for number in range(25):
    admitted = Admission(store).create(Kind.TRIGGER, trigger(f"p{sys.argv[2]}-{number}"))
    print(admitted.obj.metadata.resource_version)
    store.counters.activate(store.desired_generation())
store.close()
"""


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    command = [sys.executable, "-c", _WRITER, str(path)]
    # Nobody opened the file before: they race for making it as well.
    writers = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(times(2, 3))
    ]
    versions: list[int] = []
    for writer in writers:
        out, problems = writer.communicate(timeout=120)
        assert writer.returncode == 0, problems
        versions.extend(map(int, out.split()))
    store = Store.open(path)
    # 25 triggers of each and the default broker, each with a number of its own.
    count = 25 * len(writers)
    assert sorted(versions) == list(range(2, count + 2))
    table = store.snapshot()
    assert sorted(target.id for target in table.targets.values()) == list(range(1, count + 1))
    assert (store.desired_generation(), table.generation) == (count, count)
    assert len(stored_brokers(store)) == 1
    store.close()


def test_stored_objects_have_their_types(admission: Admission) -> None:
    assert isinstance(admission.create(Kind.TRIGGER, trigger()).obj, Trigger)
    assert isinstance(admission.create(Kind.BROKER, broker("b")).obj, Broker)
