"""Routing rows of triggers and subscriptions, written in the caller's transaction; the routing table made of them."""

from __future__ import annotations

import dataclasses
import sqlite3
from typing import Final

import msgspec

from headgate.filter.compile.plan import PLAN_VERSION, CompiledFilter, filter_cost
from headgate.objects.kinds.routing import DeliveryRules, PullRules, RoutingTable, Target
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
from headgate.objects.store.database import Database
from headgate.objects.store.plans import PlanDecoder, WrittenFilter, encode_plan, outdated_plan
from headgate.objects.store.rows import NAMED, Facts, KnownObjects, bump, bump_all, counter, public_url
from headgate_api.event.names import identity, path_of
from headgate_api.objects.kinds import (
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
    uid = facts.broker_uid(obj.broker_key) or ""
    _put(connection, obj, plan, way, (taken["target"], uid, needs, taken["routing"], compiler))
    return facts.inputs(obj, obj.broker_key, way.subscriber_broker, way.subscriber, needs)


def update_target(
    connection: sqlite3.Connection, obj: Routed, plan: CompiledFilter, *, compiler: int, facts: Facts
) -> int:
    """Write the routing row of a changed object, and take a generation if its filter is another one; its target id."""
    way = _route(obj, facts.url)
    target, was_routed, old_plan, needs, uid, plan_version = connection.execute(
        f"SELECT id, routed, plan, needs, broker_uid, plan_version FROM targets WHERE {NAMED}", key_of(obj)
    ).fetchone()
    readable = PlanDecoder().decode(old_plan) if old_plan is not None and plan_version == PLAN_VERSION else None
    filter_changed = readable is None or (readable.cel, readable.rows) != (plan.cel, plan.rows)
    if filter_changed:
        connection.execute("DELETE FROM reports WHERE target = ?", (target,))
    if (filter_changed and way.routed) or way.routed != bool(was_routed):
        generation = bump(connection, "desired_generation")
        needs = generation if way.routed else 0
    uid = facts.broker_uid(obj.broker_key) or uid
    _put(connection, obj, plan, way, (target, uid, needs, bump(connection, "routing"), compiler))
    return int(target)


def _put(
    connection: sqlite3.Connection,
    obj: Routed,
    plan: CompiledFilter,
    way: _Route,
    numbers: tuple[int, str, int, int, int],
) -> None:
    """Write a routing row; the numbers are its id, its broker's uid, its generation, its version, the compiler's."""
    target, uid, needs, routing, compiler = numbers
    filter_, filters = compiler_input(obj)
    key = key_of(obj)
    row = {
        "id": target,
        "kind": key.kind,
        "namespace": key.namespace,
        "name": key.name,
        "broker": obj.broker_key,
        "broker_uid": uid,
        "subscriber_broker": way.subscriber_broker,
        "subscriber": way.subscriber,
        "delivery": way.delivery,
        "ordered": is_ordered(obj.metadata),
        "sink_broker": way.sink_broker,
        "pull": way.pull,
        "filter": msgspec.json.encode(WrittenFilter(filter_, tuple(filters))),
        "compiler": compiler,
        "plan_version": PLAN_VERSION,
        "plan": encode_plan(plan),
        "plan_error": "",
        "needs": needs,
        "routing": routing,
        "subscriber_ca": obj.spec.subscriber.ca_certs if isinstance(obj, Trigger) else "",
        "subscriber_audience": obj.spec.subscriber.audience if isinstance(obj, Trigger) else "",
        "authenticates": bool(auths_of(obj.spec.delivery)),
        "cost": filter_cost(plan),
        "paused": isinstance(obj, Trigger) and is_paused(obj.metadata),
    }
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT OR REPLACE INTO targets ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def target_cost(connection: sqlite3.Connection, key: ObjectKey) -> int:
    """What the filter of a stored object costs; 0 where that is not known."""
    row = connection.execute(f"SELECT cost FROM targets WHERE {NAMED}", key).fetchone()
    return (row[0] or 0) if row is not None else 0


class _Route(msgspec.Struct, frozen=True):
    """How events leave: to a subscriber, or with consumers who come."""

    subscriber: str = ""
    subscriber_broker: str = ""
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
    broker = referenced_broker(obj.metadata, obj.spec.subscriber)
    return _Route(destination_uri(obj.metadata, obj.spec.subscriber, public_url), broker, rules, sink_broker)


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
    bump(connection, "routing")
    if row[1]:
        bump(connection, "desired_generation")


class TargetTable:
    """Triggers and subscriptions by their target ids. Every method may block."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def id_of(self, key: ObjectKey) -> int | None:
        """None when there is no such object."""
        with self._database.read() as connection:
            found = connection.execute(f"SELECT id FROM targets WHERE {NAMED}", key).fetchone()
        return found[0] if found else None

    def keys(self) -> dict[int, ObjectKey]:
        with self._database.read() as connection:
            rows = connection.execute("SELECT id, kind, namespace, name FROM targets")
            return {target: ObjectKey(Kind(kind), namespace, name) for target, kind, namespace, name in rows}


class PublicUrl:
    """The server's own address, the first part of every broker's URL. Every method may block."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        self._table = RoutingTable(0, -1, {}, ())
        self._targets: dict[int, tuple[Target, DeliverySpec | None, bool]] = {}
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
        self._drop_deleted(connection)
        self._table = RoutingTable(
            generation=counter(connection, "desired_generation"),
            version=version,
            brokers=self._identities,
            targets=tuple(self._targets[key][0] for key in sorted(self._targets)),
            plans_outdated=len(self._outdated),
        )
        return self._table

    def _read_brokers(self, url: str) -> None:
        """Takes up other brokers, or another address of the server, which deliveries may go by."""
        before = self._brokers
        self._brokers = {path: broker for path, broker in self._known.by_path.items() if is_served(broker)}
        self._identities = {path: identity_of(broker) for path, broker in self._brokers.items()}
        if url == self._public_url and _rules(self._brokers) == _rules(before):
            return
        self._public_url = url
        for key, (target, own, ordered) in list(self._targets.items()):
            delivery = self._rules_of(target.name, path_of(target.broker), own, ordered=ordered)
            if delivery != target.delivery:
                self._targets[key] = (dataclasses.replace(target, delivery=delivery), own, ordered)

    def _drop_deleted(self, connection: sqlite3.Connection) -> None:
        """Behind `_read_changed`: all that is stored is among what was read, so as many are the same."""
        (count,) = connection.execute("SELECT count(*) FROM targets").fetchone()
        if count == len(self._targets) + len(self._unrouted):
            return
        there = {key for (key,) in connection.execute("SELECT id FROM targets")}
        self._unrouted &= there
        for key in self._targets.keys() - there:
            self._drop(key)

    def _drop(self, key: int) -> None:
        self._targets.pop(key, None)
        self._outdated.discard(key)

    def _read_changed(self, connection: sqlite3.Connection, since: int) -> None:
        rows = connection.execute(
            "SELECT id, namespace, name, broker, broker_uid, subscriber, delivery, ordered, plan, plan_version, pull,"
            " needs, subscriber_ca, subscriber_audience, paused, routed AND plan NOTNULL"
            " FROM targets"
            " WHERE routing > ?",
            (since,),
        )
        for *row, ca, audience, paused, routed in rows:
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
            )
            self._targets[key] = (target, own, bool(ordered))

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
