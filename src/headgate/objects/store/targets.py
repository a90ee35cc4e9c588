"""Rows of targets: their routing, what dispatchers report on them, and the routing table made of all."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from headgate.filter.compile.plan import PLAN_VERSION, CompiledFilter, filter_cost
from headgate.filter.tools.advice import is_never_true
from headgate.objects.kinds.routing import (
    FINDINGS,
    DeliveryRules,
    PullRules,
    RoutingStep,
    RoutingTable,
    Target,
    TargetFindings,
    TargetReport,
    ToldFindings,
)
from headgate.objects.kinds.specs import compiler_input, delivery_rules, is_ordered, is_paused, pull_rules, retention_us
from headgate.objects.kinds.status import (
    StatusInputs,
    auths_of,
    destination_uri,
    identity_of,
    is_served,
    referenced_broker,
    sink_of,
)
from headgate.objects.store.database import Table
from headgate.objects.store.plans import PlanDecoder, WrittenFilter, encode_plan, outdated_plan
from headgate.objects.store.rows import NAMED, Facts, KnownObjects, bump, bump_all, counter, public_url
from headgate_api.event.names import identity, path_of
from headgate_api.limits import DROPPED_ROUTINGS_KEPT, REPORT_TEXT_CHARACTERS_MAX, ROUTING_STEPS_MAX
from headgate_api.objects.kinds import (
    RBAC_KINDS,
    SUBSCRIBER_ANNOTATION,
    Broker,
    DeliverySpec,
    Kind,
    Metadata,
    ObjectKey,
    Routed,
    Subscription,
    Trigger,
    key_of,
)

TARGET_ID_MAX: Final = (1 << 31) - 1
_JOINED_ANEW: Final = -1
"""Instead of a compiler's version: the filter is to be compiled anew, below another ceiling."""
_HAS_WAY: Final = "(subscriber != '' OR pull NOTNULL)"
_DELIVERY: Final = msgspec.json.Decoder(DeliverySpec)
_PULL: Final = msgspec.json.Decoder(PullRules)


def insert_target(
    connection: sqlite3.Connection, obj: Routed, plan: CompiledFilter, *, compiler: int, facts: Facts
) -> StatusInputs:
    """Write the routing row of a new object, and take a generation; what its status depends on."""
    way = _route(obj, facts.url)
    names = ("target", "routing", "desired_generation") if way.routed else ("target", "routing")
    taken = bump_all(connection, names)
    if taken["target"] > TARGET_ID_MAX:
        raise OverflowError("all target ids are used up")
    needs = taken.get("desired_generation", 0)
    connection.execute("DELETE FROM reports WHERE target = ?", (taken["target"],))
    never = is_never_true(plan)
    own = {"id": taken["target"], "broker_uid": facts.broker_uid(obj.broker_key), "needs": needs, "never": never}
    _put(connection, obj, plan, way, own | {"routing": taken["routing"], "compiler": compiler})
    names = obj.broker_key, way.subscriber_broker, way.subscriber
    return facts.inputs(obj, *names, needs, never=never, ceiling=plan.ceiling, within=plan.within)


def update_target(
    connection: sqlite3.Connection, obj: Routed, plan: CompiledFilter, *, compiler: int, facts: Facts
) -> int:
    """Write the routing row of a changed object, and take a generation if its filter is another one; its target id."""
    way = _route(obj, facts.url)
    columns = "id, routed, plan, needs, broker_uid, plan_version, transform, forbidden, taken_by"
    target, was_routed, old_plan, needs, uid, plan_version, transform, forbidden, taken_by = connection.execute(
        f"SELECT {columns} FROM targets WHERE {NAMED}", key_of(obj)
    ).fetchone()
    forbidden = forbidden and taken_by == _taken_by(obj)  # who changes it has the right
    is_routed = way.routed and not forbidden
    readable = PlanDecoder().decode(old_plan) if old_plan is not None and plan_version == PLAN_VERSION else None
    filter_changed = readable is None or (readable.cel, readable.rows) != (plan.cel, plan.rows)
    if filter_changed or transform != obj.spec.transform:
        connection.execute("DELETE FROM reports WHERE target = ?", (target,))
    if (filter_changed and is_routed) or is_routed != bool(was_routed):
        generation = bump(connection, "desired_generation")
        needs = generation if is_routed else 0
    uid = facts.broker_uid(obj.broker_key) or uid
    own = {"id": target, "broker_uid": uid, "needs": needs, "never": is_never_true(plan), "forbidden": forbidden}
    _put(connection, obj, plan, way, own | {"routing": bump(connection, "routing"), "compiler": compiler})
    return int(target)


def _put(
    connection: sqlite3.Connection, obj: Routed, plan: CompiledFilter, way: _Route, own: Mapping[str, object]
) -> None:
    """Write a routing row; `own` are columns that the object does not say."""
    filter_, filters = compiler_input(obj)
    row = {
        **key_of(obj)._asdict(),
        **msgspec.structs.asdict(way),
        **own,
        "broker": obj.broker_key,
        "ordered": is_ordered(obj.metadata),
        "filter": msgspec.json.encode(WrittenFilter(filter_, tuple(filters))),
        "plan_version": PLAN_VERSION,
        "plan": encode_plan(plan),
        "plan_error": "",
        "authenticates": bool(auths_of(obj.spec.delivery)),
        "cost": filter_cost(plan),
        "transform": obj.spec.transform,
        "paused": isinstance(obj, Trigger) and is_paused(obj.metadata),
        "taken_by": _taken_by(obj),
        "ceiling": plan.ceiling,
        "within": plan.within,
    }
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT OR REPLACE INTO targets ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _taken_by(obj: Routed) -> str:
    """By whose right it gets events, see `Grants.signed`; empty where nobody is known."""
    return obj.metadata.annotations.get(SUBSCRIBER_ANNOTATION, "")


def target_cost(connection: sqlite3.Connection, key: ObjectKey) -> int:
    """What the filter of a stored object costs; 0 where that is not known."""
    row = connection.execute(f"SELECT cost FROM targets WHERE {NAMED}", key).fetchone()
    return (row[0] or 0) if row is not None else 0


class _Route(msgspec.Struct, frozen=True):
    """How events leave, as columns: to a subscriber, or with consumers who come."""

    subscriber: str = ""
    subscriber_broker: str = ""
    subscriber_ca: str = ""
    subscriber_audience: str = ""
    delivery: bytes | None = None
    sink_broker: str = ""
    pull: bytes | None = None

    @property
    def routed(self) -> bool:
        return bool(self.subscriber) or self.pull is not None


def _route(obj: Routed, public_url: str) -> _Route:
    delivery = obj.spec.delivery
    rules = msgspec.json.encode(delivery) if delivery is not None else None
    sink_broker = sink_of(obj.metadata, delivery, public_url).broker
    if isinstance(obj, Subscription):
        return _Route(delivery=rules, sink_broker=sink_broker, pull=msgspec.json.encode(pull_rules(obj)))
    to = obj.spec.subscriber
    broker, uri = referenced_broker(obj.metadata, to), destination_uri(obj.metadata, to, public_url)
    return _Route(uri, broker, to.ca_certs, to.audience, rules, sink_broker)


def adopt_targets(connection: sqlite3.Connection, broker: Broker) -> None:
    """What names a broker gets the events of the one just made, and no more those of an earlier one of its name."""
    path = path_of(identity_of(broker))
    (routed,) = connection.execute("SELECT count(*) FROM targets WHERE broker = ? AND routed", (path,)).fetchone()
    generation = bump(connection, "desired_generation") if routed else 0
    connection.execute(
        "UPDATE targets SET broker_uid = ?, routing = ?, needs = CASE WHEN routed THEN ? ELSE 0 END WHERE broker = ?",
        (broker.metadata.uid, bump(connection, "routing"), generation, path),
    )


def drop_target(connection: sqlite3.Connection, key: ObjectKey) -> None:
    """Forget a deleted object; its id stays used."""
    row = connection.execute(f"DELETE FROM targets WHERE {NAMED} RETURNING id, routed", key).fetchone()
    connection.execute("DELETE FROM reports WHERE target = ?", (row[0],))
    routing = bump(connection, "routing")
    connection.execute("INSERT INTO dropped VALUES (?, ?)", (routing, row[0]))
    connection.execute("DELETE FROM dropped WHERE routing <= ?", (routing - DROPPED_ROUTINGS_KEPT,))
    if row[1]:
        bump(connection, "desired_generation")


class Taker(NamedTuple):
    """One by whose right targets of a namespace take the events of a broker `namespace/name`, below a ceiling."""

    by: str
    broker: str
    namespace: str
    forbidden: bool
    ceiling: str

    @property
    def is_foreign(self) -> bool:
        """Whether the broker is of another namespace, so that its events need a right."""
        return not self.broker.startswith(f"{self.namespace}/")


class TargetTable(Table):
    """Triggers and subscriptions by their target ids."""

    def id_of(self, key: ObjectKey) -> int | None:
        """None when there is no such object."""
        found = self._database.rows(f"SELECT id FROM targets WHERE {NAMED}", key)
        return found[0][0] if found else None

    def triggers_of(self, broker: ObjectKey, after: str, limit: int) -> list[ObjectKey]:
        """Of a broker's triggers those behind one (`namespace/name`, empty: the first); other namespaces' come last."""
        own, rows = broker.namespace, []
        namespace, _, name = after.partition("/")
        if not after or namespace == own:
            namespace = ""
            # The unary plus keeps SQLite to the index of names: thousands need not be sorted for a page.
            where = "kind = ? AND namespace = ? AND name > ? AND +broker = ? ORDER BY name LIMIT ?"
            rows = self._named(where, Kind.TRIGGER, own, name, broker.path, limit)
        if len(rows) < limit:
            where = "broker = ? AND kind = ? AND namespace != ? AND (namespace, name) > (?, ?)"
            foreign = (broker.path, Kind.TRIGGER, own, namespace, name if namespace else "", limit - len(rows))
            rows += self._named(f"{where} ORDER BY namespace, name LIMIT ?", *foreign)
        return [ObjectKey(Kind.TRIGGER, *row) for row in rows]

    def _named(self, where: str, *parameters: object) -> list[tuple[str, str]]:
        return [*self._database.rows(f"SELECT namespace, name FROM targets WHERE {where}", parameters)]

    def ceiling_of(self, key: ObjectKey) -> tuple[str, str] | None:
        """The broker `namespace/name` of an object, and its ceiling; None when there is no such object."""
        found = self._database.rows(f"SELECT broker, ceiling FROM targets WHERE {NAMED}", key)
        return found[0] if found else None

    def takers(self, since: int = -1) -> list[Taker]:
        """Those by whose right events are taken, as they were judged last; of targets whose routing is newer."""
        columns = "taken_by, broker, namespace, forbidden, ceiling"
        # The unary plus keeps SQLite to the index of routing: few of many have changed.
        where, parameters = ("taken_by != ''", ()) if since < 0 else ("+taken_by != '' AND routing > ?", (since,))
        rows = self._database.rows(f"SELECT DISTINCT {columns} FROM targets WHERE {where}", parameters)
        return [Taker(row[0], row[1], row[2], bool(row[3]), row[4]) for row in rows]

    def rights(self) -> tuple[int, int]:
        """Other numbers whenever a role or a binding was written or deleted."""
        marks = ", ".join("?" * len(RBAC_KINDS))
        question = f"SELECT count(*), ifnull(max(version), 0) FROM objects WHERE kind IN ({marks})"
        ((count, newest),) = self._database.rows(question, tuple(RBAC_KINDS))
        return count, newest

    def judge(self, changed: Iterable[tuple[Taker, Taker]]) -> None:
        """Has the targets of each as they are judged now: routed no more where it is forbidden, below another ceiling.

        The ceiling holds at once, by the last check before delivery; `StoredPlans.recompile` joins it to the filters.
        """
        with self._database.write() as connection:
            for old, new in changed:
                where = "taken_by = ? AND broker = ? AND namespace = ? AND forbidden = ? AND ceiling = ?"
                compiler = "compiler" if old.ceiling == new.ceiling else str(_JOINED_ANEW)
                routing, own = bump(connection, "routing"), (new.forbidden, new.ceiling)
                if old.forbidden != new.forbidden:
                    needs = bump(connection, "desired_generation")
                    connection.execute(
                        f"UPDATE targets SET needs = CASE WHEN {_HAS_WAY} AND NOT ? THEN ? ELSE 0 END WHERE {where}",
                        (new.forbidden, needs, *old),
                    )
                connection.execute(
                    f"UPDATE targets SET forbidden = ?, ceiling = ?, routing = ?, compiler = {compiler} WHERE {where}",
                    (*own, routing, *old),
                )

    def keys(self) -> dict[int, ObjectKey]:
        rows = self._database.rows("SELECT id, kind, namespace, name FROM targets")
        return {target: ObjectKey(Kind(kind), namespace, name) for target, kind, namespace, name in rows}


class StoppedFilter(NamedTuple):
    """A filter that matched regularly, and does no more; `needs` is the generation that first held it."""

    needs: int
    message: str


class ReportTable(Table):
    """What dispatchers have reported on targets."""

    def report(self, reports: Iterable[TargetReport]) -> None:
        """Adds what a dispatcher saw since its last report; targets that are gone are left out."""
        with self._database.write() as connection:
            mark = bump(connection, "report")
            for report in reports:
                if connection.execute("SELECT 1 FROM targets WHERE id = ?", (report.target,)).fetchone():
                    _put_findings(connection, report.target, _found(connection, report.target).plus(report), mark)

    def put(self, told: Mapping[int, ToldFindings]) -> int:
        """Puts findings, by target, in the place of other ones, but not those of an earlier filter; how many it put."""
        with self._database.read() as connection:
            changed = {target: one for target, one in told.items() if _differs(connection, target, one)}
        if changed:
            with self._database.write() as connection:
                mark = bump(connection, "report")
                for target, one in changed.items():
                    if _differs(connection, target, one):
                        _put_findings(connection, target, one, mark)
        return len(changed)

    def forget_trouble(self, owns: Callable[[int], bool]) -> None:
        """A new dispatcher knows of no trouble with any subscriber or backlog of the targets that it owns."""
        with self._database.write() as connection:
            mark = bump(connection, "report")
            found = connection.execute("SELECT target FROM reports WHERE trouble != '' OR backlog != ''").fetchall()
            connection.executemany(
                "UPDATE reports SET trouble = '', backlog = '', report = ? WHERE target = ?",
                [(mark, target) for (target,) in found if owns(target)],
            )

    def stopped(self) -> dict[int, StoppedFilter]:
        """The filters that are said to have stopped matching, by target."""
        rows = self._database.rows(
            "SELECT target, needs, stopped FROM reports JOIN targets ON id = target WHERE stopped != ''"
        )
        return {target: StoppedFilter(needs, message) for target, needs, message in rows}

    def tell_stopped(self, told: Mapping[int, StoppedFilter]) -> None:
        """Says which filters have stopped matching, by target, and no others; one that has changed since is not."""
        known = self.stopped()
        changed = {target for target in known.keys() | told.keys() if known.get(target) != told.get(target)}
        if not changed:
            return
        with self._database.write() as connection:
            mark = bump(connection, "report")
            for target in changed:
                one = told.get(target)
                if one is None:
                    connection.execute("UPDATE reports SET stopped = '', report = ? WHERE target = ?", (mark, target))
                elif _needs(connection, target) == one.needs:
                    if not connection.execute("SELECT 1 FROM reports WHERE target = ?", (target,)).fetchone():
                        _put_findings(connection, target, TargetFindings(), mark)
                    connection.execute(
                        "UPDATE reports SET stopped = ?, report = ? WHERE target = ?",
                        (one.message[:REPORT_TEXT_CHARACTERS_MAX], mark, target),
                    )

    def since(self, report: int) -> tuple[int, ...]:
        """Targets with reports after a value of the `report` counter."""
        return tuple(
            target for (target,) in self._database.rows("SELECT target FROM reports WHERE report > ?", (report,))
        )


def _found(connection: sqlite3.Connection, target: int) -> TargetFindings:
    row = connection.execute(f"SELECT {', '.join(FINDINGS)} FROM reports WHERE target = ?", (target,)).fetchone()
    return TargetFindings(*row) if row else TargetFindings()


def _needs(connection: sqlite3.Connection, target: int) -> int | None:
    """The generation that first held the filter that a target has; None for a target that is gone."""
    found = connection.execute("SELECT needs FROM targets WHERE id = ?", (target,)).fetchone()
    return found[0] if found else None


def _differs(connection: sqlite3.Connection, target: int, told: ToldFindings) -> bool:
    """Whether findings are of the filter that a target has, and other ones than are known."""
    if _needs(connection, target) != told.needs:
        return False
    return _values(_found(connection, target)) != _values(told)


def _values(found: TargetFindings) -> tuple[object, ...]:
    return tuple(getattr(found, name) for name in FINDINGS)


def _put_findings(connection: sqlite3.Connection, target: int, found: TargetFindings, mark: int) -> None:
    columns = ("report", *FINDINGS)
    marks, news = ", ".join("?" * (len(columns) + 1)), ", ".join(f"{name} = excluded.{name}" for name in columns)
    connection.execute(
        f"INSERT INTO reports (target, {', '.join(columns)}) VALUES ({marks})"
        f" ON CONFLICT (target) DO UPDATE SET {news}",
        (target, mark, *_values(found)),
    )


class PublicUrl(Table):
    """The server's own address, the first part of every broker's URL."""

    def get(self) -> str:
        with self._database.read() as connection:
            return public_url(connection)

    def set(self, url: str) -> None:
        """Tell the address; brokers that are subscribers follow."""
        with self._database.write() as connection:
            if public_url(connection) == url:
                return
            connection.execute(
                "INSERT INTO settings VALUES ('public_url', ?) ON CONFLICT DO UPDATE SET value = excluded.value", (url,)
            )
            rows = connection.execute(
                "SELECT t.id, o.body FROM targets t JOIN objects o ON o.kind = t.kind AND o.namespace = t.namespace"
                " AND o.name = t.name WHERE t.subscriber_broker != ''"
            ).fetchall()
            routing = bump(connection, "routing")
            for target, body in rows:
                trigger = msgspec.json.decode(body, type=Trigger)
                uri = destination_uri(trigger.metadata, trigger.spec.subscriber, url)
                connection.execute(
                    "UPDATE targets SET subscriber = ?, routing = ? WHERE id = ?", (uri, routing, target)
                )


class SnapshotCache:
    """Builds routing tables, decoding only what changed since the last one."""

    def __init__(self) -> None:
        self._plans = PlanDecoder()
        self._table = RoutingTable.of(0, -1, {}, ())
        self._targets: dict[int, Target] = {}
        self._own: dict[int, tuple[DeliverySpec | None, bool]] = {}
        """Of each target what it says of its deliveries itself, and whether it is ordered."""
        self._changed: set[int] = set()
        """Targets that are not as in the last table."""
        self._unrouted: set[int] = set()
        """Targets whose events can go nowhere, or whose filter no longer compiles: they are not in the table."""
        self._outdated: set[int] = set()
        """Targets whose plan another version of the compiler wrote."""
        self._known: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
        self._brokers: dict[str, Broker] = {}
        """Those that are served."""
        self._identities: dict[str, str] = {}
        self._public_url = ""

    def table(self, connection: sqlite3.Connection) -> RoutingTable:
        version = counter(connection, "routing")
        if version == self._table.version:
            return self._table
        url = public_url(connection)
        if self._known.read(connection) or url != self._public_url:
            self._read_brokers(url)
        self._read_changed(connection, self._table.version)
        self._drop_deleted(connection, self._table.version, version)
        self._table = RoutingTable(
            generation=counter(connection, "desired_generation"),
            version=version,
            brokers=self._identities,
            targets=dict(self._targets),
            plans_outdated=len(self._outdated),
            steps=self._steps(),
        )
        return self._table

    def _steps(self) -> tuple[RoutingStep, ...]:
        """Those of the last table and the newest; none up to one of most targets: all are looked at then."""
        step = RoutingStep(self._table.version, frozenset(self._changed))
        self._changed.clear()
        if 2 * len(step.changed) > len(self._targets):
            return ()
        return (*self._table.steps, step)[-ROUTING_STEPS_MAX:]

    def _read_brokers(self, url: str) -> None:
        """Takes up other brokers, or another address of the server, which deliveries may go by."""
        before = self._brokers
        self._brokers = {path: broker for path, broker in self._known.by_path.items() if is_served(broker)}
        self._identities = {path: identity_of(broker) for path, broker in self._brokers.items()}
        if url == self._public_url and _rules(self._brokers) == _rules(before):
            return
        self._public_url = url
        for key, target in self._targets.items():
            own, ordered = self._own[key]
            delivery = self._rules_of(target.name, path_of(target.broker), own, ordered=ordered)
            if delivery != target.delivery:
                self._changed.add(key)
                self._targets[key] = dataclasses.replace(target, delivery=delivery)

    def _drop_deleted(self, connection: sqlite3.Connection, since: int, version: int) -> None:
        if 0 <= version - since <= DROPPED_ROUTINGS_KEPT:
            gone = {key for (key,) in connection.execute("SELECT target FROM dropped WHERE routing > ?", (since,))}
        else:
            there = {key for (key,) in connection.execute("SELECT id FROM targets")}
            gone = (self._targets.keys() | self._unrouted) - there
        self._unrouted -= gone
        for key in gone:
            self._drop(key)

    def _drop(self, key: int) -> None:
        if self._targets.pop(key, None) is not None:
            self._changed.add(key)
            del self._own[key]
        self._outdated.discard(key)

    def _read_changed(self, connection: sqlite3.Connection, since: int) -> None:
        rows = connection.execute(
            "SELECT id, namespace, name, broker, broker_uid, subscriber, delivery, ordered, plan, plan_version, pull,"
            " needs, subscriber_ca, subscriber_audience, paused, transform, ceiling, routed AND plan NOTNULL"
            " FROM targets"
            " WHERE routing > ?",
            (since,),
        )
        for *row, ca, audience, paused, transform, ceiling, routed in rows:
            key, namespace, name, broker, uid, subscriber, delivery, ordered, plan, plan_version, pull, needs = row
            if not routed:
                self._unrouted.add(key)
                self._drop(key)
                continue
            self._unrouted.discard(key)
            path = f"{namespace}/{name}"
            own = _DELIVERY.decode(delivery) if delivery is not None else None
            rules = self._rules_of(path, broker, own, ordered=bool(ordered))
            pulled = _PULL.decode(pull) if pull is not None else None
            if pulled is not None:
                # With another broker of the same name a subscription's backfill starts again.
                pulled = dataclasses.replace(pulled, filter_id=f"{pulled.filter_id}/{uid}")
            if plan_version == PLAN_VERSION:
                filter_ = self._plans.decode(plan)
                self._outdated.discard(key)
            else:
                filter_ = outdated_plan(plan)
                self._outdated.add(key)
            if ceiling:
                filter_ = dataclasses.replace(filter_, ceiling=ceiling)
            target = Target(
                key,
                path,
                identity(broker, uid),
                filter_,
                subscriber,
                rules,
                pulled,
                needs,
                ca,
                audience,
                bool(paused),
                transform,
            )
            self._targets[key], self._own[key] = target, (own, bool(ordered))
            self._changed.add(key)

    def _rules_of(self, trigger: str, broker_path: str, own: DeliverySpec | None, *, ordered: bool) -> DeliveryRules:
        """The trigger's rules as a whole, else the broker's as a whole (C20), with the sink's address."""
        broker = self._brokers.get(broker_path)
        if own is None and broker is not None:
            chosen, owner = broker.spec.delivery, broker.metadata
        else:
            chosen, owner = own, Metadata(namespace=trigger.partition("/")[0])
        rules = delivery_rules(chosen, ordered=ordered, dead_letter_uri=sink_of(owner, chosen, self._public_url).uri)
        kept_us = retention_us(broker.spec.log) if broker is not None else None
        return rules if kept_us is None else dataclasses.replace(rules, retention_us=kept_us)


def _rules(brokers: dict[str, Broker]) -> dict[str, tuple[DeliverySpec | None, int | None]]:
    return {path: (broker.spec.delivery, retention_us(broker.spec.log)) for path, broker in brokers.items()}
