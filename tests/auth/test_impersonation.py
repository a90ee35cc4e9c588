"""Headers that ask for another user: as whom the request is made, which rights that needs, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from headgate.auth.audit import AuditEntry, line_of
from headgate.auth.authorizer import Binding, BindingSubject, RbacAuthorizer, RbacPolicy, RoleKey, SubjectKind
from headgate.auth.context import ENTRY, USER
from headgate.auth.rules import AccessRule, Attributes
from headgate.auth.user import ImpersonationError, User, authenticated, impersonation_of
from headgate.server.authorization import AuthorizedRequests

Header = tuple[bytes, bytes]
IDENTITY = "authentication.k8s.io"


def test_without_such_headers_nobody_is_asked_for() -> None:
    assert impersonation_of([(b"authorization", b"Bearer x"), (b"impersonate", b"ann")]) is None


def test_each_part_is_a_right() -> None:
    found = impersonation_of(
        [
            (b"impersonate-user", "jürgen".encode()),
            (b"impersonate-group", b"dev"),
            (b"impersonate-group", b"system:masters"),
            (b"impersonate-uid", b"7"),
            (b"impersonate-extra-acme.com%2fproject", b"a"),
            (b"impersonate-extra-acme.com%2fproject", b"b"),
        ]
    )
    assert found is not None
    groups = ("dev", "system:masters", "system:authenticated")
    assert found.user == User("jürgen", groups, "7", {"acme.com/project": ("a", "b")})
    assert found.needed == (
        Attributes("impersonate", "", "users", name="jürgen"),
        Attributes("impersonate", "", "groups", name="dev"),
        Attributes("impersonate", "", "groups", name="system:masters"),
        Attributes("impersonate", IDENTITY, "uids", name="7"),
        Attributes("impersonate", IDENTITY, "userextras", "acme.com/project", name="a"),
        Attributes("impersonate", IDENTITY, "userextras", "acme.com/project", name="b"),
    )


@pytest.mark.parametrize(
    ("name", "groups", "wanted"),
    [
        (
            "system:anonymous",
            ("system:unauthenticated",),
            Attributes("impersonate", "", "users", name="system:anonymous"),
        ),
        (
            "system:serviceaccount:ns:sa",
            ("system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"),
            Attributes("impersonate", "", "serviceaccounts", namespace="ns", name="sa"),
        ),
    ],
)
def test_groups_that_nobody_names(name: str, groups: tuple[str, ...], wanted: Attributes) -> None:
    found = impersonation_of([(b"impersonate-user", name.encode())])
    assert found is not None
    assert (found.user.groups, found.needed) == (groups, (wanted,))


@pytest.mark.parametrize(
    "headers",
    [
        [(b"impersonate-group", b"dev")],
        [(b"impersonate-extra-a", b"b")],
        [(b"impersonate-user", b"")],
        [(b"impersonate-user", b"a"), (b"impersonate-user", b"b")],
        [(b"impersonate-user", b"a"), (b"impersonate-uid", b"1"), (b"impersonate-uid", b"2")],
        [(b"impersonate-user", b"a"), (b"impersonate-users", b"b")],
        [(b"impersonate-user", b"a\xff")],
        [(b"impersonate-user", b"a\x01")],
        [(b"impersonate-user", b"a"), *([(b"impersonate-group", b"g" * 1_000)] * 20)],
    ],
)
def test_who_cannot_be_is_refused(headers: list[Header]) -> None:
    with pytest.raises(ImpersonationError):
        impersonation_of(headers)


def rule(verb: str, resource: str, *names: str) -> AccessRule:
    group = "" if verb == "impersonate" else "eventing.knative.dev"
    return AccessRule(frozenset({verb}), frozenset({group}), frozenset({resource}), frozenset(names))


def asked(headers: list[Header]) -> tuple[int, list[User], dict[str, Any]]:
    """What root's request for a list of triggers gets, as whom it came through, and its line in the audit log."""
    roles = {
        RoleKey("impersonator"): (rule("impersonate", "users", "ann"), rule("impersonate", "groups", "team-a")),
        RoleKey("lister"): (rule("list", "triggers"),),
    }
    subjects = {"impersonator": (SubjectKind.USER, "root"), "lister": (SubjectKind.GROUP, "team-a")}
    bindings = [Binding(name, "", RoleKey(name), (BindingSubject(*one),)) for name, one in subjects.items()]
    authorizer = RbacAuthorizer()
    authorizer.policy = RbacPolicy(roles, bindings)
    seen: list[User] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope[USER])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    root = authenticated("root")
    entry = AuditEntry("/", "", "", "get", user=root)
    path = "/apis/eventing.knative.dev/v1/namespaces/a/triggers"
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers, USER: root}
    asyncio.run(AuthorizedRequests(app, authorizer)({**scope, ENTRY: entry}, cast(Any, None), send))
    status = sent[0]["status"]
    return status, seen, json.loads(line_of(entry, status))


def test_the_gate_judges_the_other_user() -> None:
    ann = [(b"impersonate-user", b"ann")]
    assert asked([])[:2] == (403, [])
    assert asked(ann)[:2] == (403, [])  # she has nothing without her group
    status, seen, line = asked([*ann, (b"impersonate-group", b"team-a")])
    assert (status, seen) == (200, [User("ann", ("team-a", "system:authenticated"))])
    assert (line["user"]["username"], line["impersonatedUser"]["username"]) == ("root", "ann")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"impersonate-user", b"bob")], 403),
        ([(b"impersonate-user", b"ann"), (b"impersonate-group", b"system:masters")], 403),
        ([(b"impersonate-user", b"ann"), (b"impersonate-uid", b"1")], 403),
        ([(b"impersonate-user", b"ann"), (b"impersonate-extra-a", b"1")], 403),
        ([(b"impersonate-group", b"team-a")], 400),
    ],
)
def test_the_gate_refuses_whom_the_user_may_not_be(headers: list[Header], status: int) -> None:
    found, seen, line = asked(headers)
    assert (found, seen, "impersonatedUser" in line) == (status, [], False)
    if status == 403:
        assert (line["verb"], line["annotations"]["authorization.k8s.io/decision"]) == ("impersonate", "forbid")
