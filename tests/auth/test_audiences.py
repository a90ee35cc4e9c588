"""A token that is meant for brokers publishes to them, and opens nothing else, whoever its user is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.auth.authorizer import AlwaysAllow
from headgate.auth.event_policies import DefaultMode, EventPolicyAuthority, PublishAuthorizer
from headgate.auth.json_web_tokens import TokenVerifier
from headgate.auth.routes import ROUTES, wanted_by_request
from headgate.auth.rules import Attributes
from tests.auth.issuing import AUDIENCE, CONFIG, Issuer, trusted

ORDERS, DESK = (f"eventing.knative.dev/broker/shop/{name}" for name in ("orders", "desk"))
KNOWN = CONFIG.replace(f"[{AUDIENCE}]", f"[{AUDIENCE}, {ORDERS}, {DESK}]\n    audienceMatchPolicy: MatchAny")
AUTHORIZER = PublishAuthorizer(AlwaysAllow(), EventPolicyAuthority(DefaultMode.ALLOW_ALL))
PLACES = ("/shop/orders", "/shop/desk", "/shop/other", "/shop2/orders")


@pytest.mark.parametrize(
    ("audience", "open_to"),
    [
        (AUDIENCE, PLACES),
        ([AUDIENCE, ORDERS], PLACES),
        (ORDERS, ("/shop/orders",)),
        ([ORDERS], ("/shop/orders",)),
        ([ORDERS, "https://elsewhere.example"], ("/shop/orders",)),
        ([ORDERS, DESK], ("/shop/orders", "/shop/desk")),
    ],
)
def test_a_token_for_a_broker_is_good_there_alone(
    tmp_path: Path, audience: str | list[str], open_to: tuple[str, ...]
) -> None:
    issuer = Issuer()
    verifier = TokenVerifier((trusted(issuer, tmp_path, KNOWN),))
    user = asyncio.run(verifier.verify(issuer.token(issuer.claims(aud=audience)).encode())).user
    assert user.name == "oidc:ada"

    def may(wanted: Attributes) -> bool:
        return AUTHORIZER.allowed(user, wanted).allowed

    assert tuple(path for path in PLACES if may(wanted_by_request("POST", path))) == open_to
    is_whole = open_to == PLACES
    assert bool(AUTHORIZER.rules_of(user, "shop")) is is_whole, "nothing that it could give away"
    for route in ROUTES:
        path = route.path.replace("{namespace}", "shop").replace("{name}", "orders").replace("{id}", "1")
        wanted = wanted_by_request("POST" if route.method == "*" else route.method, path)
        assert may(wanted) is (is_whole or path == "/shop/orders"), route
