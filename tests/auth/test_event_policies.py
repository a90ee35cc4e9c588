"""Decisions by EventPolicies: whom a policy names, the modes without one, and what roles have to do with it."""

from __future__ import annotations

import pytest

from headgate.auth.authorizer import AccessDecision
from headgate.auth.event_policies import DefaultMode, EventPolicies, EventPolicyAuthority, PublishAuthorizer, SenderRule
from headgate.auth.routes import PUBLISH
from headgate.auth.rules import AccessRule, Attributes
from headgate.auth.user import ANONYMOUS, ANONYMOUS_NAME, User, authenticated, sender_of, service_account, subject_of

ANN, BOB = authenticated("ann"), authenticated("bob")
CREW = authenticated(service_account("shop", "crew"))
OTHERS = authenticated(service_account("shop2", "crew"))
BROKER = "shop/orders"


@pytest.mark.parametrize(
    ("subject", "user", "named"),
    [
        ("ann", ANN, True),
        ("ann", authenticated("Ann"), False),
        ("ann", authenticated("anna"), False),
        ("an*", ANN, True),
        ("ann*", ANN, True),
        ("*", ANN, True),
        ("*", ANONYMOUS, False),
        ("system:*", ANONYMOUS, False),
        (ANONYMOUS_NAME, ANONYMOUS, True),
        ("system:serviceaccount:shop:*", CREW, True),
        ("system:serviceaccount:shop:*", OTHERS, False),
        (subject_of("shop/crm"), sender_of("shop/crm"), True),
        (subject_of("shop/crm"), sender_of("shop/crm2"), False),
        ("", ANN, False),
    ],
)
def test_whom_a_subject_names(subject: str, user: User, named: bool) -> None:
    subjects = (subject,) if subject else ()
    assert SenderRule.of("p", subjects).is_for(user) is named


def test_policies_admit_by_union() -> None:
    rules = (
        SenderRule.of("a", ("ann",), 'ce.type == "a"'),
        SenderRule.of("b", ("a*",), 'ce.type == "b"'),
        SenderRule.of("c", ("bob",)),
        SenderRule.of("d", ("bob", "eve"), 'ce.type == "d"'),
        SenderRule.of("e", ("mallory",), None),
    )
    policies = EventPolicies(DefaultMode.ALLOW_ALL, {BROKER: rules})
    for _ in range(2):  # the second time it is remembered
        assert policies.admission(ANN, BROKER).filters == ('ce.type == "a"', 'ce.type == "b"')
        assert policies.admission(BOB, BROKER).every  # one of them has no filter
        assert policies.admission(authenticated("eve"), BROKER).filters == ('ce.type == "d"',)
        closed = policies.admission(authenticated("mallory"), BROKER)
        assert (closed.every, closed.filters, bool(closed.reason)) == (False, (), True)
        stranger = policies.admission(CREW, BROKER)
        assert (stranger.every, stranger.filters, bool(stranger.reason)) == (False, (), True)


@pytest.mark.parametrize(
    ("mode", "entering", "takes"),
    [
        (DefaultMode.ALLOW_SAME_NAMESPACE, {CREW.name, sender_of("shop/crm").name}, True),
        (DefaultMode.ALLOW_ALL, {CREW.name, OTHERS.name, ANN.name, sender_of("shop/crm").name}, True),
        (DefaultMode.DENY_ALL, set(), False),
    ],
)
def test_modes_without_a_policy(mode: DefaultMode, entering: set[str], takes: bool) -> None:
    policies = EventPolicies(mode, {"shop/other": (SenderRule.of("p", ("ann",)),)})
    users = (ANN, CREW, OTHERS, ANONYMOUS, sender_of("shop/crm"))
    assert {user.name for user in users if policies.door(user, BROKER)} == entering
    assert all(policies.admission(user, BROKER).every is takes for user in users)
    assert not any(policies.door(user, "shop/") or policies.door(user, "/") for user in users)


def test_a_mode_does_not_count_where_a_policy_applies() -> None:
    policies = EventPolicies(DefaultMode.ALLOW_ALL, {BROKER: (SenderRule.of("p", ("ann",)),)})
    assert policies.door(ANN, BROKER) == 'EventPolicy "p/shop" names the user'
    assert not policies.door(CREW, BROKER)
    assert not policies.admission(CREW, BROKER).every


class OnlyBob:
    def allowed(self, user: User, wanted: Attributes) -> AccessDecision:
        return AccessDecision(user == BOB, "roles")

    def rules_of(self, user: User, namespace: str) -> tuple[AccessRule, ...]:
        return ()

    def ceiling(self, user: User, wanted: Attributes) -> str:
        return ""

    def has_ceilings(self, user: User, namespace: str) -> bool:
        return False


def test_policies_let_in_for_publishing_and_nothing_else() -> None:
    authority = EventPolicyAuthority(DefaultMode.DENY_ALL)
    authorizer = PublishAuthorizer(OnlyBob(), authority)
    publish = PUBLISH._replace(namespace="shop", name="orders")
    assert authorizer.allowed(BOB, publish) == AccessDecision(True, "roles")
    assert not authorizer.allowed(ANN, publish).allowed
    authority.policies = EventPolicies(DefaultMode.DENY_ALL, {BROKER: (SenderRule.of("p", ("ann",), "false"),)})
    assert authorizer.allowed(ANN, publish).reason == 'EventPolicy "p/shop" names the user'
    assert not authorizer.allowed(ANN, publish._replace(verb="get")).allowed
    assert not authorizer.allowed(ANN, publish._replace(subresource="")).allowed
    assert not authorizer.allowed(ANN, publish._replace(name="")).allowed
    assert not authorizer.allowed(ANN, publish._replace(name="other")).allowed
    assert authorizer.rules_of(ANN, "shop") == ()
    # Roles open the door, and policies decide about the events.
    assert authorizer.allowed(BOB, publish).allowed
    assert not authority.policies.admission(BOB, BROKER).every


def test_a_trigger_is_a_user() -> None:
    assert sender_of("shop/crm") == authenticated(
        "system:serviceaccount:shop:oidc-eventing.knative.dev-trigger-crm",
        ("system:serviceaccounts", "system:serviceaccounts:shop"),
    )
    assert sender_of("") is ANONYMOUS
