"""What the author of an object must be allowed, beside the writing of it: nobody gives away what he does not have.

Two kinds of objects give something away. A role or a binding gives rights. A trigger, a subscription or a broker that
names a broker of another namespace sends events there, or takes them from there, for as long as it lives. Who takes
them is written down, as his right to do so may end earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from headgate.auth.authorizer import NOTHING, OPEN, AlwaysAllow, Authorizer, ForbiddenError, check
from headgate.auth.routes import PUBLISH, RBAC, READ, SUBSCRIBE
from headgate.auth.rules import AccessRule, Attributes, uncovered
from headgate.auth.user import User
from headgate.filter.tools.ceiling import is_inside
from headgate.objects.kinds.egress import UrlPolicy, UrlRefusedError, published_broker
from headgate.objects.kinds.event_policies import foreign_senders
from headgate.objects.kinds.event_types import is_made_of_events
from headgate.objects.kinds.managers import with_metadata
from headgate.objects.kinds.quotas import DEAD_LETTERS, STORED_BYTES, count_of, without_counts
from headgate.objects.kinds.rbac_rules import AnyBinding, AnyRole, access_rules
from headgate.objects.kinds.routing import Target
from headgate.objects.kinds.status import destination_uri, referenced_broker, sink_of, without_findings
from headgate.objects.store.store import Store
from headgate.objects.store.targets import Taker
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import (
    CREATOR_ANNOTATION,
    MODIFIER_ANNOTATION,
    SUBSCRIBER_ANNOTATION,
    Broker,
    ClusterRole,
    ClusterRoleBinding,
    Eventing,
    EventPolicy,
    EventType,
    Kind,
    Object,
    ObjectKey,
    RbacRole,
    ResourceQuota,
    RoleBinding,
    Routed,
    Subscription,
    Trigger,
    content,
    key_of,
)

_COUNTS_OF_BROKERS: Final = frozenset({STORED_BYTES, count_of(Kind.EVENT_TYPE)})
"""Resources of which a namespace uses more by the events of its brokers."""
_SHOWN_MAX: Final = 20
"""Missing rights that a refusal names."""


def seen_by(authorizer: Authorizer, user: User, obj: Object) -> Object:
    """An object as a user may see it, who may not learn of all events that it gets or counts."""
    if not isinstance(obj, Routed | ResourceQuota) or not authorizer.has_ceilings(user, ""):
        return obj
    if isinstance(obj, ResourceQuota):
        # Dead letters are of events that a namespace has had, perhaps from a broker of another one.
        is_of_place = authorizer.has_ceilings(user, obj.metadata.namespace)
        return without_counts(obj, _COUNTS_OF_BROKERS | {DEAD_LETTERS} if is_of_place else {DEAD_LETTERS})
    ceiling = authorizer.ceiling(user, SUBSCRIBE.on(obj.broker_key))
    return obj if ceiling in ("", obj.status.ceiling) else without_findings(obj)


def hides(authorizer: Authorizer, user: User, kind: Kind, namespace: str) -> Callable[[str], bool] | None:
    """Which objects of a kind, by name, a user must not hear of in a namespace (empty: in all); None for none.

    These are EventTypes that are made of events: which of them are below his ceiling nobody knows.
    """
    return is_made_of_events if kind is Kind.EVENT_TYPE and authorizer.has_ceilings(user, namespace) else None


def check_heard_of(authorizer: Authorizer, user: User, key: ObjectKey) -> None:
    """Lets somebody name an object; ForbiddenError, whether it is there or not, where he must not hear of it."""
    hidden = hides(authorizer, user, key.kind, key.namespace)
    if hidden is not None and hidden(key.name):
        detail = "a name as event types have that are made of events, and your right to them has a ceiling"
        raise ForbiddenError(user, _attributes("get", key), detail)


def may_see(authorizer: Authorizer, user: User, target: Target) -> bool:
    """Whether a user may list the trigger or subscription that a target is."""
    kind = Kind.TRIGGER if target.pull is None else Kind.SUBSCRIPTION
    return authorizer.allowed(user, Attributes("list", kind.group, kind.plural).on(target.name)).allowed


def is_own(authorizer: Authorizer, user: User, broker: str, ceiling: str) -> bool:
    """Whether a user may know of all events that a target has, of a broker below a ceiling (empty: all). May block."""
    return _is_within(ceiling, authorizer.ceiling(user, SUBSCRIBE.on(broker)))


def _is_within(ceiling: str, own: str) -> bool:
    return own in ("", ceiling) or (ceiling != "" and is_inside(ceiling, own))


class Grants:
    """Judges authors; `refresh` brings the authorizer up to date. Its methods may block: call them in a thread."""

    def __init__(
        self,
        store: Store,
        policy: UrlPolicy,
        authorizer: Authorizer = OPEN,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._policy = policy
        self.authorizer = authorizer
        self.refresh = refresh

    @property
    def knows_users(self) -> bool:
        """Whether there is anything to judge."""
        return not isinstance(self.authorizer, AlwaysAllow)

    def judge(self, author: User | None, old: Object | None, new: Object) -> None:
        """Lets an author (None: the server itself) write `new`, its defaults set, in the place of `old` or of nothing.

        Raises ForbiddenError when he has not what the object would give away, ObjectNotFoundError when a binding names
        a role that does not exist.
        """
        if author is None or not self.knows_users:
            return
        self.refresh()
        is_other = old is None or content(old) != content(new)
        match new:
            case RbacRole() | ClusterRole():
                if is_other:
                    self._judge_role(author, new)
            case RoleBinding() | ClusterRoleBinding():
                if is_other:
                    self._judge_binding(author, new)
            case EventType():
                check_heard_of(self.authorizer, author, key_of(new))
            case EventPolicy():
                if is_other:
                    # He lets others publish, so he must have the right for all of the namespace himself.
                    check(self.authorizer, author, PUBLISH._replace(namespace=new.metadata.namespace))
                    for trigger in foreign_senders(new):
                        # The policy's status will say whether it exists: who may not look must not learn that.
                        check(self.authorizer, author, _attributes("get", trigger))
            case Broker() | Trigger() | Subscription():
                before = set(self._foreign(old)) if isinstance(old, Broker | Routed) else set()
                for broker in sorted(set(self._foreign(new)) - before):
                    check(self.authorizer, author, PUBLISH.on(broker))
                if isinstance(new, Broker) and is_other:
                    self._judge_broker(author, old, new)
                if is_other and isinstance(new, Routed) and new.is_foreign:
                    check(self.authorizer, author, SUBSCRIBE.on(new.broker_key))

    def judged(self, taker: Taker) -> Taker:
        """One whom `signed` wrote down, with the right and the ceiling that he has now; by what is known.

        In the namespace of the broker who may write triggers needs no other right. One whose last right to events is
        gone gets no more than before for that: what he has stays below its ceiling.
        """
        try:
            found = msgspec.json.decode(taker.by, type=_Subscriber)
        except msgspec.MsgspecError:
            return taker._replace(forbidden=taker.is_foreign, ceiling=NOTHING)
        user, wanted = User(found.name, found.groups), SUBSCRIBE.on(taker.broker)
        may = [self.authorizer.allowed(user, right.on(taker.broker)).allowed for right in (SUBSCRIBE, READ)]
        ceiling = self.authorizer.ceiling(user, wanted) if any(may) else taker.ceiling
        return taker._replace(forbidden=taker.is_foreign and not may[0], ceiling=ceiling)

    def ceiling_on(self, user: User, broker: str) -> str:
        """Of which events of a broker a user may know who has a ceiling, by what is known; empty: of all."""
        may = any(self.authorizer.allowed(user, right.on(broker)).allowed for right in (SUBSCRIBE, READ))
        return self.authorizer.ceiling(user, SUBSCRIBE.on(broker)) if may else NOTHING

    def knows(self, user: User, broker: str, ceiling: str) -> bool:
        """Whether such a user may know of all events of a broker below a ceiling (empty: all), by what is known."""
        return _is_within(ceiling, self.ceiling_on(user, broker))

    def ceiling_of(self, obj: Routed) -> str:
        """The ceiling of whoever `signed` wrote down, by what is known; empty for none."""
        by = obj.metadata.annotations.get(SUBSCRIBER_ANNOTATION, "")
        if not by or not self.knows_users:
            return ""
        return self.judged(Taker(by, obj.broker_key, obj.metadata.namespace, False, "")).ceiling

    def judge_create(self, author: User | None, key: ObjectKey) -> None:
        """Lets an apply make what is not there: who may patch may not therefore create, as in Kubernetes."""
        if author is not None and self.knows_users:
            check(self.authorizer, author, _attributes("create", key))

    def judge_url(self, author: User, namespace: str, url: str) -> None:
        """Lets somebody send a namespace's events to a URL: to a broker of another one if he may publish there."""
        broker = self.broker_of(url)
        if broker and broker.partition("/")[0] != namespace:
            check(self.authorizer, author, PUBLISH.on(broker))

    def signed(self, author: User | None, old: Object | None, new: Object) -> Object:
        """The object with its author in Knative's annotations; what a client writes there does not count."""
        if not self.knows_users or not isinstance(new, Eventing):
            return new
        stored = old.metadata.annotations if old is not None else {}
        names = {key: stored[key] for key in _SIGNATURES if key in stored}
        if author is not None and (old is None or content(old) != content(new)):
            names[MODIFIER_ANNOTATION] = author.name
            if old is None:
                names[CREATOR_ANNOTATION] = author.name
            if isinstance(new, Routed):
                by = msgspec.json.encode(_Subscriber(author.name, tuple(author.groups))).decode()
                names[SUBSCRIBER_ANNOTATION] = by
        kept = {key: value for key, value in new.metadata.annotations.items() if key not in _SIGNATURES}
        return with_metadata(new, annotations=kept | names)

    def _judge_broker(self, author: User, old: Object | None, new: Broker) -> None:
        """Whoever gets not all of a broker's events sends none of the others' to a sink of his."""
        before = old.spec.delivery if isinstance(old, Broker) else None
        if old is None or before == new.spec.delivery:
            return
        if any(self.authorizer.ceiling(author, right.on(new.metadata.path)) for right in (READ, SUBSCRIBE)):
            detail = "its spec.delivery is of all its triggers, and your right to its events has a ceiling"
            raise ForbiddenError(author, _attributes("update", key_of(new)), detail)

    def _judge_role(self, author: User, role: AnyRole) -> None:
        if not self.authorizer.allowed(author, _attributes("escalate", key_of(role))).allowed:
            self._judge_rules(author, key_of(role), access_rules(role.rules))

    def _judge_binding(self, author: User, binding: AnyBinding) -> None:
        kind = Kind(binding.role_ref.kind)
        namespace = binding.metadata.namespace
        role = ObjectKey(kind, namespace if kind is Kind.ROLE else "", binding.role_ref.name)
        bind = Attributes("bind", RBAC, kind.plural, "", namespace, role.name)
        if self.authorizer.allowed(author, bind).allowed:
            return
        try:
            found = self._store.get(role)
        except ObjectNotFoundError:
            # Who may not look must not learn from an error whether it exists.
            check(self.authorizer, author, _attributes("get", role))
            raise
        assert isinstance(found, RbacRole | ClusterRole)
        self._judge_rules(author, key_of(binding), access_rules(found.rules))

    def _judge_rules(self, author: User, key: ObjectKey, rules: tuple[AccessRule, ...]) -> None:
        missing = uncovered(self.authorizer.rules_of(author, key.namespace), rules)
        if missing:
            listed = "\n".join(map(str, missing[:_SHOWN_MAX])) + ("\n..." if len(missing) > _SHOWN_MAX else "")
            groups = " ".join(f'"{group}"' for group in author.groups)
            raise ForbiddenError(
                author,
                _attributes("update", key),
                f'user "{author.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:'
                f"\n{listed}",
            )

    def _foreign(self, obj: Broker | Routed) -> Iterator[str]:
        """The brokers of other namespaces that an object sends to, as `namespace/name`."""
        own = obj.metadata.namespace
        yield from (broker for broker in self._sent_to(obj) if broker and broker.partition("/")[0] != own)

    def _sent_to(self, obj: Broker | Routed) -> Iterator[str]:
        url = self._store.public_url.get()
        sink = sink_of(obj.metadata, obj.spec.delivery, url)
        yield sink.broker
        yield self.broker_of(sink.uri)
        if isinstance(obj, Trigger):
            yield referenced_broker(obj.metadata, obj.spec.subscriber)
            yield self.broker_of(destination_uri(obj.metadata, obj.spec.subscriber, url))

    def broker_of(self, url: str | None) -> str:
        """`namespace/name` of the broker of this server that a URL means; empty when it means none."""
        if not url:
            return ""
        try:
            found = self._policy.check(url)
        except UrlRefusedError:
            return ""
        return published_broker(unquote(urlsplit(found.url).path)) if found.trusted else ""


_SIGNATURES: Final = (CREATOR_ANNOTATION, MODIFIER_ANNOTATION, SUBSCRIBER_ANNOTATION)


class _Subscriber(msgspec.Struct, frozen=True):
    """By whose right a trigger or subscription gets the events of its broker."""

    name: str
    groups: tuple[str, ...] = ()


def _attributes(verb: str, key: ObjectKey) -> Attributes:
    return Attributes(verb, key.kind.group, key.kind.plural, "", key.namespace, key.name)
