"""From the claims of a token to a user, by the mappings and rules of its issuer. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headgate.auth.configuration import ClaimOrExpression, JwtSettings
from headgate.auth.errors import AuthFileError, CredentialsRefusedError
from headgate.auth.user import User, authenticated, checked
from headgate.filter.cel.engine import Activation, Environment, Expression
from headgate.filter.cel.errors import EvaluationError, FilterError
from headgate_api.limits import FILTER_CHARACTERS_MAX

Claims = Mapping[str, Any]
"""What a token says, from JSON."""

_ENVIRONMENT: Final = Environment.of_maps("claims", "user")
_CALLED: Final = re.compile(r"""'[^']*'|"[^"]*"|((?:\b(?:sets|ip)\.)?\w+)(?=\s*\()""", re.ASCII)
"""A function, and not what a text in quotes holds."""
_LACKING: Final = re.compile(
    r"find|findAll|isSorted|sum|min|max|indexOf|lastIndexOf|flatten|slice|sort|distinct|range|reverse|sets(\..*)?|url|isURL"
    r"|get(Scheme|Host|Hostname|Port|EscapedPath|Query)|quantity|isQuantity|ip|isIP|ip\.isCanonical|cidr|isCIDR|family"
    r"|containsIP|containsCIDR|masked|prefixLength|semver|isSemver|format|named"
)
"""Functions that Kubernetes offers here and cel-cpp's libraries do not have."""


class _Rule:
    __slots__ = ("expression", "field", "message")

    def __init__(self, text: str, field: str, message: str = "") -> None:
        self.expression = _compiled(text, field)
        self.field = field
        self.message = message


class ClaimMapper:
    """Makes users of claims; `at`, such as `jwt[0]`, is a place in the file. AuthFileError for CEL that is wrong."""

    def __init__(self, settings: JwtSettings, at: str) -> None:
        mappings = settings.claim_mappings
        self._mappings = mappings
        self._expressions = {
            name: _compiled(one.expression, f"{at}.claimMappings.{name}.expression")
            for name, one in (("username", mappings.username), ("groups", mappings.groups), ("uid", mappings.uid))
            if one.expression
        }
        self._extra = {
            one.key: _compiled(one.value_expression, f"{at}.claimMappings.extra[{number}].valueExpression")
            for number, one in enumerate(mappings.extra)
        }
        rules = [*enumerate(settings.claim_validation_rules)]
        self._required = {rule.claim: rule.required_value for _, rule in rules if rule.claim}
        self._claim_rules = [
            _Rule(rule.expression, f"{at}.claimValidationRules[{number}]", rule.message)
            for number, rule in rules
            if rule.expression
        ]
        self._user_rules = [
            _Rule(rule.expression, f"{at}.userValidationRules[{number}]", rule.message)
            for number, rule in enumerate(settings.user_validation_rules)
        ]

    def user_of(self, claims: Claims) -> User:
        """The user of a token that is otherwise good; CredentialsRefusedError when its claims break a rule."""
        for name, value in self._required.items():
            if claims.get(name) != value or not isinstance(claims.get(name), str):
                raise CredentialsRefusedError("claims", f"the claim {name!r} does not have the value that is required")
        given = Activation({"claims": claims, "user": {}}, _ENVIRONMENT)
        for rule in self._claim_rules:
            _hold(rule, given, "claims")
        user = authenticated(
            self._name(claims, given),
            self._list("groups", self._mappings.groups, claims, given),
            self._uid(claims, given),
            {key: values for key, one in self._extra.items() if (values := _texts(one, given, f"extra {key}"))},
        )
        if problem := checked(user):
            raise CredentialsRefusedError("claims", f"the token {problem}")
        if self._user_rules:
            _check_user(self._user_rules, user)
        return user

    def _name(self, claims: Claims, given: Activation) -> str:
        mapping = self._mappings.username
        if mapping.expression:
            name = _value(self._expressions["username"], given, "username")
        else:
            name = claims.get(mapping.claim)
            if mapping.claim == "email" and claims.get("email_verified", True) is not True:
                raise CredentialsRefusedError("claims", "the address of e-mail in the token is not verified")
        if not isinstance(name, str) or not name:
            raise CredentialsRefusedError("claims", "the claim that names the user is missing, empty or no text")
        return (mapping.prefix or "") + name

    def _uid(self, claims: Claims, given: Activation) -> str:
        mapping = self._mappings.uid
        if not mapping.is_set:
            return ""
        uid = _value(self._expressions["uid"], given, "uid") if mapping.expression else claims.get(mapping.claim)
        if not isinstance(uid, str):
            raise CredentialsRefusedError("claims", "the claim that holds the uid is missing or no text")
        return uid

    def _list(self, name: str, mapping: ClaimOrExpression, claims: Claims, given: Activation) -> tuple[str, ...]:
        if mapping.expression:
            return _texts(self._expressions[name], given, name)
        found = claims.get(mapping.claim) if mapping.claim else None
        return tuple((mapping.prefix or "") + text for text in _as_texts(found, name))


def _check_user(rules: list[_Rule], user: User) -> None:
    extra = {key: list(values) for key, values in user.extra.items()}
    shown = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    given = Activation({"claims": {}, "user": shown}, _ENVIRONMENT)
    for rule in rules:
        _hold(rule, given, "user")


def _hold(rule: _Rule, given: Activation, reason: str) -> None:
    try:
        held = rule.expression.plain_value(given)
    except EvaluationError:
        held = False
    if held is not True:
        raise CredentialsRefusedError(reason, "the token breaks a rule of the server", hint=rule.message)


def _value(expression: Expression, given: Activation, name: str) -> object:
    try:
        return expression.plain_value(given)
    except EvaluationError as error:
        raise CredentialsRefusedError("claims", f"the token does not say the {name}") from error


def _texts(expression: Expression, given: Activation, name: str) -> tuple[str, ...]:
    found = _value(expression, given, name)
    return tuple(_as_texts([] if found == "" else found, name))


def _as_texts(found: object, name: str) -> list[str]:
    if found is None:
        return []
    texts = [found] if isinstance(found, str) else found
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise CredentialsRefusedError("claims", f"the claim for {name} is neither a text nor a list of texts")
    return [one for one in texts if one]


def _compiled(text: str, field: str) -> Expression:
    if not text.strip() or len(text) > FILTER_CHARACTERS_MAX:
        raise AuthFileError(f"{field}: an expression has 1 to {FILTER_CHARACTERS_MAX} characters", hint="write CEL")
    try:
        return _ENVIRONMENT.compile(text)
    except FilterError as error:
        lacking = next(filter(_LACKING.fullmatch, _CALLED.findall(text)), None)
        if lacking is not None:
            raise AuthFileError(
                f"{field}: Kubernetes has the function {lacking!r}, Headgate does not", hint="write it in another way"
            ) from error
        raise AuthFileError(
            f"{field}: {error.reason}", hint=error.hint or "claims.sub is a claim of the token"
        ) from error
