"""Decisions by roles and bindings, against what Kubernetes documents, and against the plainest reading of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.auth.authorizer import (
    AlwaysAllow,
    Binding,
    BindingSubject,
    ForbiddenError,
    RbacAuthorizer,
    RbacPolicy,
    RoleKey,
    SubjectKind,
    check,
)
from headgate.auth.routes import wanted_by_request
from headgate.auth.rules import EVERYTHING, AccessRule, Attributes, GrantTooLargeError, uncovered
from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate_api import limits

EVENTING, OWN, RBAC = "eventing.knative.dev", "headgate.dev", "rbac.authorization.k8s.io"
JANE = authenticated("jane", ("team-a", "ops"))


def rule(verbs: str, groups: str = EVENTING, resources: str = "", names: str = "", paths: str = "") -> AccessRule:
    """Each argument has its words; `core` is the group without a name."""
    parts = [frozenset(text.split()) for text in (verbs, groups, resources, names, paths)]
    parts[1] = frozenset("" if group == "core" else group for group in parts[1]) if not paths else frozenset()
    return AccessRule(*parts)


def on(verb: str, resource: str, namespace: str = "a", name: str = "", group: str = EVENTING) -> Attributes:
    plural, _, subresource = resource.partition("/")
    return Attributes(verb, group, plural, subresource, namespace, name)


def at(path: str, verb: str = "get") -> Attributes:
    return Attributes(verb, path=path)


ALL = rule("*", "*", "*")
RULES = [
    # verbs
    (rule("get", resources="brokers"), on("get", "brokers", name="x"), True),
    (rule("get", resources="brokers"), on("list", "brokers"), False),
    (rule("get", resources="brokers"), on("watch", "brokers"), False),
    (rule("list", resources="brokers"), on("watch", "brokers"), False),
    (rule("get list watch", resources="brokers"), on("watch", "brokers"), True),
    (rule("update", resources="brokers"), on("patch", "brokers", name="x"), False),
    (rule("patch", resources="brokers"), on("update", "brokers", name="x"), False),
    (rule("delete", resources="brokers"), on("deletecollection", "brokers"), False),
    (rule("deletecollection", resources="brokers"), on("delete", "brokers", name="x"), False),
    (rule("*", resources="brokers"), on("deletecollection", "brokers"), True),
    (rule("*", resources="brokers"), on("escalate", "brokers"), True),
    (rule("GET", resources="brokers"), on("get", "brokers"), False),
    (rule("g*", resources="brokers"), on("get", "brokers"), False),
    # groups
    (rule("get", OWN, "brokers"), on("get", "brokers"), False),
    (rule("get", "*", "brokers"), on("get", "brokers"), True),
    (rule("get", f"{EVENTING} {OWN}", "subscriptions"), on("get", "subscriptions", group=OWN), True),
    (rule("get", "core", "namespaces"), on("get", "namespaces", group=""), True),
    (rule("get", "core", "brokers"), on("get", "brokers"), False),
    (rule("get", EVENTING, "namespaces"), on("get", "namespaces", group=""), False),
    (rule("get", "*.knative.dev", "brokers"), on("get", "brokers"), False),
    # resources and what lies below them
    (rule("get", resources="brokers"), on("get", "triggers"), False),
    (rule("get", resources="brokers triggers"), on("get", "triggers"), True),
    (rule("get", resources="*"), on("get", "triggers"), True),
    (rule("get", resources="*"), on("get", "brokers/events"), True),
    (rule("get", resources="brokers"), on("get", "brokers/events"), False),
    (rule("get", resources="brokers/events"), on("get", "brokers/events"), True),
    (rule("get", resources="brokers/events"), on("get", "brokers"), False),
    (rule("get", resources="brokers/*"), on("get", "brokers/events"), False),
    (rule("get", resources="brokers/*"), on("get", "brokers"), False),
    (rule("get", resources="*/events"), on("get", "brokers/events"), True),
    (rule("get", resources="*/events"), on("get", "brokers"), False),
    (rule("get", resources="*/events"), on("get", "brokers/status"), False),
    (rule("get", resources="*/events"), on("get", "events"), False),
    (rule("get", resources="*/status"), on("get", "triggers/status"), True),
    (rule("get", resources="broker"), on("get", "brokers"), False),
    (rule("get", resources="Brokers"), on("get", "brokers"), False),
    (rule("create", resources="brokers"), on("create", "brokers/events"), False),
    (rule("create", resources="brokers/events"), on("create", "brokers/events", name="x"), True),
    # names
    (rule("get", resources="brokers", names="x"), on("get", "brokers", name="x"), True),
    (rule("get", resources="brokers", names="x"), on("get", "brokers", name="y"), False),
    (rule("get", resources="brokers", names="x y"), on("get", "brokers", name="y"), True),
    (rule("list", resources="brokers", names="x"), on("list", "brokers"), False),
    (rule("list", resources="brokers", names="x"), on("list", "brokers", name="x"), True),
    (rule("watch", resources="brokers", names="x"), on("watch", "brokers", name="x"), True),
    (rule("create", resources="brokers", names="x"), on("create", "brokers"), False),
    (rule("deletecollection", resources="brokers", names="x"), on("deletecollection", "brokers"), False),
    (rule("create", resources="brokers/events", names="x"), on("create", "brokers/events", name="x"), True),
    (rule("create", resources="brokers/events", names="x"), on("create", "brokers/events", name="z"), False),
    (rule("get", resources="brokers", names="*"), on("get", "brokers", name="x"), False),
    (rule("get", "*", "*", "x"), on("get", "triggers", name="x"), True),
    # paths
    (rule("get", paths="/metrics"), at("/metrics"), True),
    (rule("get", paths="/metrics"), at("/metrics/x"), False),
    (rule("get", paths="/metrics"), at("/metric"), False),
    (rule("get", paths="/livez/*"), at("/livez/x"), True),
    (rule("get", paths="/metrics/*"), at("/metrics"), False),
    (rule("get", paths="/livez*"), at("/livez"), True),
    (rule("get", paths="*"), at("/anything"), True),
    (rule("get", paths="*"), at("/anything", "post"), False),
    (rule("*", paths="/metrics"), at("/metrics", "post"), True),
    (rule("get", paths="*"), on("get", "brokers"), False),
    (ALL, at("/metrics"), False),
    (ALL, on("whatever", "what/ever", namespace="", group="x"), True),
]


@pytest.mark.parametrize(("one", "wanted", "expected"), RULES)
def test_what_a_rule_allows(one: AccessRule, wanted: Attributes, expected: bool) -> None:
    assert one.allows(wanted) is expected


def role(name: str, namespace: str, *rules: AccessRule) -> tuple[RoleKey, tuple[AccessRule, ...]]:
    return RoleKey(name, namespace), rules


def subject(text: str, namespace: str = "") -> BindingSubject:
    kind, _, name = text.partition(":")
    return BindingSubject(
        {"u": SubjectKind.USER, "g": SubjectKind.GROUP}.get(kind, SubjectKind.SERVICE_ACCOUNT), name, namespace
    )


def bind(namespace: str, to: RoleKey, *subjects: str) -> Binding:
    return Binding("b", namespace, to, tuple(subject(one, namespace) for one in subjects))


READ = rule("get list", resources="brokers")
LOCAL, GLOBAL = RoleKey("reader", "a"), RoleKey("reader")
ROLES = dict([role("reader", "a", READ), role("reader", "", READ, rule("get", paths="/metrics"))])
GET = on("get", "brokers", "a", "x")
BINDINGS = [
    # to whom
    (bind("a", LOCAL, "u:jane"), JANE, GET, True),
    (bind("a", LOCAL, "u:joe"), JANE, GET, False),
    (bind("a", LOCAL, "g:team-a"), JANE, GET, True),
    (bind("a", LOCAL, "g:team-b"), JANE, GET, False),
    (bind("a", LOCAL, "g:jane"), JANE, GET, False),
    (bind("a", LOCAL, "u:team-a"), JANE, GET, False),
    (bind("a", LOCAL, "u:Jane"), JANE, GET, False),
    (bind("a", LOCAL, "u:joe", "g:ops"), JANE, GET, True),
    (bind("a", LOCAL), JANE, GET, False),
    (bind("a", LOCAL, "g:system:authenticated"), JANE, GET, True),
    (bind("a", LOCAL, "g:system:authenticated"), ANONYMOUS, GET, False),
    (bind("a", LOCAL, "g:system:unauthenticated"), ANONYMOUS, GET, True),
    (bind("a", LOCAL, "u:system:anonymous"), ANONYMOUS, GET, True),
    (bind("a", LOCAL, "s:robot"), authenticated("system:serviceaccount:a:robot"), GET, True),
    (bind("a", LOCAL, "s:robot"), authenticated("system:serviceaccount:b:robot"), GET, False),
    (bind("a", LOCAL, "s:robot"), authenticated("robot"), GET, False),
    # where
    (bind("a", LOCAL, "u:jane"), JANE, on("get", "brokers", "b", "x"), False),
    (bind("a", LOCAL, "u:jane"), JANE, on("list", "brokers", ""), False),
    (bind("a", GLOBAL, "u:jane"), JANE, GET, True),
    (bind("a", GLOBAL, "u:jane"), JANE, on("get", "brokers", "b", "x"), False),
    (bind("a", GLOBAL, "u:jane"), JANE, on("list", "brokers", ""), False),
    (bind("a", GLOBAL, "u:jane"), JANE, at("/metrics"), False),
    (bind("", GLOBAL, "u:jane"), JANE, GET, True),
    (bind("", GLOBAL, "u:jane"), JANE, on("get", "brokers", "b", "x"), True),
    (bind("", GLOBAL, "u:jane"), JANE, on("list", "brokers", ""), True),
    (bind("", GLOBAL, "u:jane"), JANE, at("/metrics"), True),
    (bind("", GLOBAL, "u:jane"), JANE, on("delete", "brokers", "b", "x"), False),
    # roles that are not there
    (bind("b", RoleKey("reader", "b"), "u:jane"), JANE, on("get", "brokers", "b", "x"), False),
    (bind("", RoleKey("nope"), "u:jane"), JANE, GET, False),
    # the superusers
    (bind("a", LOCAL), authenticated("root", ("system:masters",)), on("delete", "anything", "z", group="z"), True),
    (bind("a", LOCAL), authenticated("root", ("system:masters",)), at("/anything", "post"), True),
    (bind("a", LOCAL), authenticated("system:masters"), GET, False),
]


@pytest.mark.parametrize(("binding", "user", "wanted", "expected"), BINDINGS)
def test_whom_a_binding_allows(binding: Binding, user: User, wanted: Attributes, expected: bool) -> None:
    policy = RbacPolicy(ROLES, [binding])
    assert policy.allowed(user, wanted).allowed is expected
    assert policy.allowed(user, wanted).allowed is expected  # remembered


def test_there_are_enough_cases() -> None:
    assert len(RULES) + len(BINDINGS) >= 60


def test_rules_of_several_bindings_add_up_and_the_reason_names_one() -> None:
    writer = RoleKey("writer", "a")
    roles = ROLES | {writer: (rule("delete", resources="brokers"),)}
    policy = RbacPolicy(roles, [bind("a", LOCAL, "u:jane"), bind("a", writer, "g:ops")])
    assert policy.allowed(JANE, GET).reason == 'RBAC: allowed by RoleBinding "b/a" of Role "reader" to User "jane"'
    assert policy.allowed(JANE, on("delete", "brokers")).reason.endswith('Role "writer" to Group "ops"')
    assert policy.allowed(JANE, on("update", "brokers")).reason == ""
    assert set(policy.rules_of(JANE, "a")) == {READ, *roles[writer]}
    assert policy.rules_of(JANE, "b") == ()


def test_a_new_policy_forgets_the_decisions_of_the_old_one() -> None:
    authorizer = RbacAuthorizer()
    assert not authorizer.allowed(JANE, GET).allowed
    authorizer.policy = RbacPolicy(ROLES, [bind("a", LOCAL, "u:jane")])
    assert authorizer.allowed(JANE, GET).allowed
    authorizer.policy = RbacPolicy(ROLES, [])
    assert not authorizer.allowed(JANE, GET).allowed


def test_decisions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.auth.authorizer.RBAC_DECISIONS_MAX", 10)
    policy = RbacPolicy(ROLES, [bind("a", LOCAL, "u:jane")])
    for number in range(100):
        assert policy.allowed(JANE, on("get", "brokers", "a", str(number))).allowed
        assert len(policy._decisions) <= 10


def test_a_refusal_is_worded_as_kubernetes_words_it() -> None:
    texts = {
        on("list", "triggers", "b"): 'triggers.eventing.knative.dev is forbidden: User "jane" cannot list resource '
        '"triggers" in API group "eventing.knative.dev" in the namespace "b"',
        on("create", "brokers/events", "b", "x"): 'brokers/events.eventing.knative.dev "x" is forbidden: User "jane" '
        'cannot create resource "brokers/events" in API group "eventing.knative.dev" in the namespace "b"',
        on("list", "namespaces", "", group=""): 'namespaces is forbidden: User "jane" cannot list resource '
        '"namespaces" in API group "" at the cluster scope',
        at("/metrics"): 'forbidden: User "jane" cannot get path "/metrics"',
    }
    for wanted, text in texts.items():
        with pytest.raises(ForbiddenError) as error:
            check(RbacAuthorizer(), JANE, wanted)
        assert error.value.message == text
        assert check(AlwaysAllow(), JANE, wanted).allowed


# --- against the plainest reading ------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "*"])
RESOURCES = st.sampled_from(["a", "b", "a/x", "b/x", "a/y", "*/x", "*"])
PATHS = st.sampled_from(["/a", "/a/b", "/a*", "/a/*", "*"])


@st.composite
def any_rule(draw: st.DrawFn, *, only_resources: bool = False) -> AccessRule:
    def some(of: st.SearchStrategy[str]) -> frozenset[str]:
        return draw(st.frozensets(of, min_size=1, max_size=2))

    if not only_resources and draw(st.integers(0, 3)) == 0:
        return AccessRule(some(WORDS), paths=some(PATHS))
    names = draw(st.frozensets(st.sampled_from(["n", "m"]), max_size=2))
    return AccessRule(some(WORDS), some(WORDS), some(RESOURCES), names)


@st.composite
def any_request(draw: st.DrawFn) -> Attributes:
    plain = st.sampled_from(["a", "b"])
    if draw(st.integers(0, 3)) == 0:
        return Attributes(draw(plain), path=draw(st.sampled_from(["/a", "/a/b", "/ab", "/c"])))
    subresource = draw(st.sampled_from(["", "x", "y"]))
    namespace, name = draw(st.sampled_from(["", "a", "b"])), draw(st.sampled_from(["", "n", "m"]))
    return Attributes(draw(plain), draw(plain), draw(plain), subresource, namespace, name)


def naive_allows(one: AccessRule, wanted: Attributes) -> bool:
    """Line by line as in Kubernetes' documentation."""
    if "*" not in one.verbs and wanted.verb not in one.verbs:
        return False
    if wanted.path:
        for path in one.paths:
            if path in ("*", wanted.path):
                return True
            if path[-1] == "*" and wanted.path[: len(path) - 1] == path[:-1]:
                return True
        return False
    if one.paths:
        return False
    if "*" not in one.groups and wanted.group not in one.groups:
        return False
    if one.names and wanted.name not in one.names:
        return False
    for resource in one.resources:
        if resource == "*":
            return True
        kind, _, below = resource.partition("/")
        if below == wanted.subresource and (kind == wanted.resource or (kind == "*" and below)):
            return True
    return False


def naive_decision(
    roles: dict[RoleKey, tuple[AccessRule, ...]], bindings: Iterable[Binding], user: User, wanted: Attributes
) -> bool:
    if "system:masters" in user.groups:
        return True
    for binding in bindings:
        if binding.namespace and (wanted.path or binding.namespace != wanted.namespace):
            continue
        for one in binding.subjects:
            is_user = one.kind is SubjectKind.USER and one.name == user.name
            is_group = one.kind is SubjectKind.GROUP and one.name in user.groups
            if (is_user or is_group) and any(naive_allows(held, wanted) for held in roles.get(binding.role, ())):
                return True
    return False


USERS = st.builds(
    User,
    st.sampled_from(["u", "v"]),
    st.lists(st.sampled_from(["g", "h", "system:masters"]), max_size=2, unique=True).map(tuple),
)
KEYS = st.builds(RoleKey, st.sampled_from(["r", "s"]), st.sampled_from(["", "a"]))
SUBJECTS = st.sampled_from(["u:u", "u:v", "g:g", "g:h", "u:g"]).map(subject)


@given(
    st.dictionaries(KEYS, st.lists(any_rule(), max_size=3).map(tuple), max_size=4),
    st.lists(
        st.builds(
            Binding, st.just("b"), st.sampled_from(["", "a", "b"]), KEYS, st.lists(SUBJECTS, max_size=2).map(tuple)
        ),
        max_size=5,
    ),
    USERS,
    st.lists(any_request(), min_size=1, max_size=5),
)
def test_decisions_are_those_of_the_plainest_reading(
    roles: dict[RoleKey, tuple[AccessRule, ...]], bindings: list[Binding], user: User, requests: list[Attributes]
) -> None:
    policy = RbacPolicy(roles, bindings)
    for wanted in requests:
        assert policy.allowed(user, wanted).allowed == naive_decision(roles, bindings, user, wanted)


@given(st.lists(any_rule(), max_size=3), st.lists(any_rule(), max_size=3), any_request())
def test_who_holds_what_he_gives_allows_nothing_new(
    own: list[AccessRule], given_away: list[AccessRule], wanted: Attributes
) -> None:
    if not uncovered(own, given_away) and any(one.allows(wanted) for one in given_away):
        assert any(one.allows(wanted) for one in own)


GRANTS = [
    ([READ], [READ], True),
    ([READ], [rule("get", resources="brokers")], True),
    ([READ], [rule("delete", resources="brokers")], False),
    ([rule("get", resources="brokers"), rule("list", resources="brokers")], [READ], True),
    (
        [rule("get", resources="brokers"), rule("get", resources="triggers")],
        [rule("get", resources="brokers triggers")],
        True,
    ),
    ([rule("get", resources="brokers")], [rule("get", resources="brokers triggers")], False),
    ([rule("*", resources="brokers")], [READ], True),
    ([READ], [rule("*", resources="brokers")], False),
    ([rule("get", "*", "brokers")], [rule("get", resources="brokers")], True),
    ([rule("get", resources="brokers")], [rule("get", "*", "brokers")], False),
    ([rule("get", resources="*")], [rule("get", resources="brokers/events")], True),
    ([rule("get", resources="*/events")], [rule("get", resources="brokers/events")], True),
    ([rule("get", resources="brokers/events")], [rule("get", resources="*/events")], False),
    ([rule("get", resources="brokers")], [rule("get", resources="brokers/events")], False),
    ([rule("get", resources="brokers")], [rule("get", resources="brokers", names="x")], True),
    ([rule("get", resources="brokers", names="x")], [rule("get", resources="brokers")], False),
    ([rule("get", resources="brokers", names="x y")], [rule("get", resources="brokers", names="x")], True),
    ([rule("get", resources="brokers", names="x")], [rule("get", resources="brokers", names="x y")], False),
    (
        [rule("get", resources="brokers", names="x"), rule("get", resources="brokers", names="y")],
        [rule("get", resources="brokers", names="x y")],
        True,
    ),
    ([rule("get", paths="/livez/*")], [rule("get", paths="/livez/x")], True),
    ([rule("get", paths="/livez/x")], [rule("get", paths="/livez/*")], False),
    ([rule("get", paths="*")], [rule("get", paths="/a /b")], True),
    ([ALL], [rule("get", paths="/metrics")], False),
    (list(EVERYTHING), [ALL, rule("*", paths="*")], True),
    ([], [], True),
    ([], [READ], False),
]


@pytest.mark.parametrize(("own", "given_away", "expected"), GRANTS)
def test_nobody_gives_what_he_does_not_hold(
    own: list[AccessRule], given_away: list[AccessRule], expected: bool
) -> None:
    assert (not uncovered(own, given_away)) is expected


def test_a_role_that_cannot_be_looked_through_is_refused() -> None:
    many = frozenset(map(str, range(limits.RBAC_RULE_ITEMS_MAX)))
    huge = AccessRule(many, many, many)
    assert uncovered([huge], [huge]) == ()
    with pytest.raises(GrantTooLargeError):
        uncovered([READ], [huge])
    assert str(READ) == '{APIGroups:["eventing.knative.dev"], Resources:["brokers"], Verbs:["get", "list"]}'


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_health_is_told_to_everybody_before_there_is_any_role(path: str) -> None:
    authorizer = RbacAuthorizer()
    for query, is_told in ((b"", True), (b"verbose", False)):
        for method in ("GET", "HEAD"):
            assert authorizer.allowed(ANONYMOUS, wanted_by_request(method, path, query)).allowed is is_told
    assert not authorizer.allowed(ANONYMOUS, wanted_by_request("POST", path)).allowed
    assert not authorizer.allowed(ANONYMOUS, wanted_by_request("GET", "/metrics")).allowed
