"""Kubernetes' file of issuers: what is taken, what is refused by name, and how claims become users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.auth.configuration import read
from headgate.auth.errors import AuthFileError, CredentialsRefusedError
from headgate.auth.json_web_tokens import ClaimMapper, trusted_issuers
from headgate.auth.user import User
from tests.certificates import Authority


def document(**changed: Any) -> dict[str, Any]:
    jwt = {
        "issuer": {"url": "https://issuer.example", "audiences": ["a"]},
        "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
    }
    for path, value in changed.items():
        *steps, last = path.split("__")
        place: Any = jwt
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = value
    return {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [jwt]}


def written(folder: Path, whole: object) -> Path:
    path = folder / "authentication.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path


def test_every_field_of_kubernetes_is_read(tmp_path: Path) -> None:
    authority = Authority(tmp_path).path.read_text()
    whole = document(
        issuer__discoveryURL="https://inside.example/openid-configuration",
        issuer__audiences=["a", "b"],
        issuer__audienceMatchPolicy="MatchAny",
        issuer__certificateAuthority=authority,
        claimMappings__groups={"expression": "claims.roles.split(',')"},
        claimMappings__uid={"claim": "jti"},
        claimMappings__extra=[{"key": "example.com/tenant", "valueExpression": "claims.tenant"}],
        claimValidationRules=[{"claim": "hd", "requiredValue": "x"}, {"expression": "claims.n > 3", "message": "m"}],
        userValidationRules=[{"expression": "!user.username.startsWith('system:')", "message": "reserved"}],
    )
    (found,) = trusted_issuers(written(tmp_path, whole))
    assert (found.url, found.audiences) == ("https://issuer.example", ("a", "b"))
    claims = {"sub": "ada", "roles": "x,y", "jti": "1", "tenant": "t", "hd": "x", "n": 4}
    wanted = User("ada", ("x", "y", "system:authenticated"), "1", {"example.com/tenant": ("t",)})
    assert found.mapper.user_of(claims) == wanted
    for changed in ({"hd": "y"}, {"n": 3}, {"sub": "system:x"}, {"roles": 1}, {"jti": None}):
        with pytest.raises(CredentialsRefusedError):
            found.mapper.user_of(claims | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"issuer__url": "http://issuer.example"}, "must begin with https"),
        ({"issuer__url": "https://u:p@issuer.example"}, "no URL of an issuer"),
        ({"issuer__url": "https://issuer.example?x"}, "no URL of an issuer"),
        ({"issuer__url": "ftp://issuer.example"}, "https"),
        ({"issuer__discoveryURL": "https://issuer.example/"}, "must not be the URL of the issuer"),
        ({"issuer__audiences": []}, "at least one"),
        ({"issuer__audiences": ["a", "b"]}, "audienceMatchPolicy: must be MatchAny"),
        ({"issuer__audienceMatchPolicy": "MatchAll"}, "must be MatchAny"),
        ({"issuer__egressSelectorType": "cluster"}, "egressSelectorType"),
        ({"issuer__certificateAuthority": "nonsense"}, "certificateAuthority"),
        ({"claimMappings__username": {"claim": "sub"}}, "username.prefix: must be given"),
        ({"claimMappings__username": {}}, "a claim or an expression"),
        ({"claimMappings__username": {"claim": "a", "prefix": "", "expression": "b"}}, "exclude each other"),
        ({"claimMappings__username": {"expression": "claims.email"}}, "claims.email_verified"),
        ({"claimMappings__groups": {"claim": "g"}}, "groups.prefix"),
        ({"claimMappings__uid": {"claim": "g", "prefix": ""}}, "uid"),
        ({"claimMappings__extra": [{"key": "Upper", "valueExpression": "''"}]}, "'Upper' is no domain"),
        ({"claimMappings__extra": [{"key": "x.k8s.io/a", "valueExpression": "''"}]}, "Kubernetes' own"),
        ({"claimValidationRules": [{"claim": "a", "expression": "b"}]}, r"claimValidationRules\[0\]"),
        ({"claimValidationRules": [{"expression": "claims.a ="}]}, r"jwt\[0\].claimValidationRules\[0\]"),
        ({"claimValidationRules": [{"expression": "claims.a.find('x') == ''"}]}, "the function 'find', Headgate does"),
        ({"userValidationRules": [{"expression": "quantity(user.uid) == 1"}]}, "the function 'quantity'"),
        ({"userValidationRules": [{"expression": "cidr('10.0.0.0/8') == user.uid"}]}, "the function 'cidr'"),
        (
            {"userValidationRules": [{"expression": "sets.contains(user.groups, ['a'])"}]},
            "the function 'sets.contains'",
        ),
        ({"userValidationRules": [{"expression": "user.uid == 'sum(1)' &&"}]}, "the expression ends too early"),
        ({"surprise": 1}, "surprise"),
        ({"issuer__URL": "x"}, "URL"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(AuthFileError, match=message):
        trusted_issuers(written(tmp_path, document(**changed)))


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ({**document(), "kind": "Config"}, "kind must be"),
        ({**document(), "apiVersion": "v2"}, "apiVersion"),
        ({**document(), "jwt": []}, "no issuer"),
        ({**document(), "jwt": document()["jwt"] * 2}, "the same url"),
        ({**document(), "anonymous": {"enabled": True}}, "--allow-anonymous"),
        ([], "object"),
        ("a: b: c", "object"),
    ],
)
def test_a_document_that_is_none_is_refused(whole: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(AuthFileError, match=message):
        read(written(tmp_path, whole))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"\xff", b"{a: [", b"x: !!python/object:os.system {}"):
        path.write_bytes(content)
        with pytest.raises(AuthFileError, match="authentication-config"):
            read(path)


def mapper(folder: Path, **changed: Any) -> ClaimMapper:
    (settings,) = read(written(folder, document(**changed)))
    return ClaimMapper(settings, "jwt[0]")


def test_an_address_that_nobody_verified_names_nobody(tmp_path: Path) -> None:
    found = mapper(tmp_path, claimMappings__username={"claim": "email", "prefix": "mail:"})
    assert found.user_of({"email": "a@b", "email_verified": True}).name == "mail:a@b"
    assert found.user_of({"email": "a@b"}).name == "mail:a@b"
    for verified in (False, "true", None, 1):
        with pytest.raises(CredentialsRefusedError, match="not verified"):
            found.user_of({"email": "a@b", "email_verified": verified})


@pytest.mark.parametrize(("roles", "groups"), [([], ()), ("", ()), (None, ()), ("x", ("x",)), (["x", ""], ("x",))])
def test_groups_by_expression(roles: object, groups: tuple[str, ...], tmp_path: Path) -> None:
    found = mapper(tmp_path, claimMappings__groups={"expression": "claims.roles"})
    assert found.user_of({"sub": "a", "roles": roles}).groups == (*groups, "system:authenticated")


@pytest.mark.parametrize("roles", [1, [1], [["x"]], {"a": "b"}, True, ["x", None]])
def test_groups_of_other_types_are_refused(roles: object, tmp_path: Path) -> None:
    for mapping in ({"expression": "claims.roles"}, {"claim": "roles", "prefix": ""}):
        found = mapper(tmp_path, claimMappings__groups=mapping)
        with pytest.raises(CredentialsRefusedError):
            found.user_of({"sub": "a", "roles": roles})


def test_an_expression_without_value_names_nobody(tmp_path: Path) -> None:
    found = mapper(tmp_path, claimMappings__username={"expression": "claims.a + claims.b"})
    assert found.user_of({"a": "x", "b": "y"}).name == "xy"
    for claims in ({}, {"a": "x"}, {"a": 1, "b": 2}, {"a": "x", "b": None}, {"a": "", "b": ""}):
        with pytest.raises(CredentialsRefusedError):
            found.user_of(claims)
