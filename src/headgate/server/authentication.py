"""Authentication at the doors of a front: who makes a request is known, and recorded, before anything answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

import grpc
from grpc_health.v1 import health_pb2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.auth.audit import AuditEntry, AuditLog, verb_of
from headgate.auth.authenticator import Authenticator
from headgate.auth.context import ENTRY, USER, USER_HEADER, current_entry, current_user, user_of
from headgate.auth.credentials import AUTHORIZATION, Credentials, der_of
from headgate.auth.errors import CredentialsRefusedError
from headgate.auth.json_web_tokens import trusted_issuers
from headgate.auth.lockout import client_of
from headgate.auth.routes import HEALTH_PATHS
from headgate.auth.static_tokens import TokenFile
from headgate.auth.user import ANONYMOUS, User
from headgate.ingress.http_connection import CLIENT_CERTIFICATE
from headgate.rpc.service import PUBLISHER, SUBSCRIPTIONS, Answer, CallContext, CallsBehind, headers_of
from headgate.server.refusals import send_refusal
from headgate.settings import Settings
from headgate.shares import FairPlaces, PlacesTakenError
from headgate_api.errors import HeadgateError
from headgate_api.limits import RPCS_MAX
from headgate_api.rpc.errors import status

_SUBSCRIBERS_PATHS: Final = frozenset({"/.well-known/openid-configuration", "/openid/v1/jwks", "/handshake/v1/allow"})
"""Of receivers of deliveries, who are no clients: they check tokens of this server, or allow deliveries by a key."""
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_CONSOLE: Final = "/ui/"
"""Pages without data, from where people sign in."""
_CHALLENGE: Final = "www-authenticate"
_HTTP_STATUSES: Final = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""What a call's end is called in the audit log, which has statuses of HTTP."""

_VERBS: Final = {PUBLISHER: "create", SUBSCRIPTIONS: "update"}
"""Kubernetes' word for the calls of a service, until who decides knows better."""


def authenticator_of(settings: Settings) -> Authenticator | None:
    """Who may be believed, by the settings; None where nobody is asked. AuthFileError when a file cannot be used."""
    if not settings.has_authentication:
        return None
    tokens = TokenFile(settings.token_auth_file) if settings.token_auth_file is not None else None
    config = settings.authentication_config
    issuers = trusted_issuers(config) if config is not None else ()
    return Authenticator(tokens, issuers, allow_anonymous=settings.allow_anonymous)


def audit_log_of(settings: Settings) -> AuditLog | None:
    """The audit log, None where there is none; AuthFileError when it cannot be written."""
    if settings.audit_log_path is None:
        return None
    return AuditLog(settings.audit_log_path, settings.audit_log_maxsize << 20, settings.audit_log_maxbackup)


class Authentication:
    """Who makes a front's requests: anonymous users without an authenticator; `audit` records writes and refusals."""

    def __init__(self, authenticator: Authenticator | None = None, audit: AuditLog | None = None) -> None:
        self._authenticator = authenticator
        self._audit = audit

    def requests(self, app: ASGIApp) -> ASGIApp:
        return AuthenticatedRequests(app, self._authenticator, self._audit)

    def calls(self, handlers: Sequence[grpc.GenericRpcHandler]) -> list[grpc.GenericRpcHandler]:
        """Handlers that share RPCS_MAX places; the server's health is told to everybody, as probes have no token."""
        places = FairPlaces("calls", "RPCS_MAX", RPCS_MAX)
        return [CallsBehind(one, partial(self._authenticated, places)) for one in handlers]

    def _authenticated(self, places: FairPlaces, method: str, answer: Answer) -> Answer:
        async def answered(request: object, context: CallContext, user: User = ANONYMOUS) -> None:
            # Of who did not say who he is the address counts: none of them takes the places of probes.
            name = f"{user.name} at {client_of_call(context)}" if user.is_anonymous else user.name
            try:
                places.check("", name)
            except PlacesTakenError as error:
                await _abort(context, error)
            with places.held("", name):
                await answer(request, context)

        async def authenticated(request: object, context: CallContext) -> None:
            entry = None
            if self._audit is not None:
                verb = _VERBS.get(method.split("/")[1], "get")
                entry = AuditEntry(method, _peer(context), _metadata(context, "user-agent"), verb)
                current_entry.set(entry)
            message, user = "", ANONYMOUS
            try:
                if self._authenticator is not None:
                    try:
                        user = await self._authenticator.authenticate(_credentials_of_call(context))
                    except HeadgateError as error:
                        message = error.message
                        await _abort(context, error)
                    current_user.set(user)
                    if entry is not None:
                        entry.user = user
                await answered(request, context, user)
            finally:
                if entry is not None and self._audit is not None:
                    self._audit.record(entry, _ended(context), message)

        return answered if method.startswith(f"/{HEALTH}/") else authenticated

    async def keep(self) -> None:
        """Never ends."""
        if self._authenticator is not None:
            await self._authenticator.keep()
        await asyncio.Event().wait()


class AuthenticatedRequests:
    """An ASGI application before another one, which finds the user in its scope."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator | None, audit: AuditLog | None) -> None:
        self._app = app
        self._authenticator = authenticator
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._audit is None:
            await self._answer(scope, receive, send)
        else:
            await self._recorded(self._audit, scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> str:
        """Says why a request was refused, if it was for want of a user."""
        try:
            if self._authenticator is None or _is_open(scope["path"], scope["query_string"]):
                scope[USER] = ANONYMOUS
            else:
                user = _recalled(self._authenticator, scope)
                scope[USER] = user or await self._authenticator.authenticate(_credentials(scope))
        except HeadgateError as error:
            shown: list[tuple[bytes, bytes]] = []
            if isinstance(error, CredentialsRefusedError):
                shown = [(_CHALLENGE.encode(), error.challenge.encode("latin-1", "replace"))]
            await send_refusal(error, scope, send, *shown)
            return error.message
        if ENTRY in scope:
            scope[ENTRY].user = scope[USER]
        await self._app(scope, receive, send)
        return ""

    async def _recorded(self, audit: AuditLog, scope: Scope, receive: Receive, send: Send) -> None:
        answered = 0

        async def sending(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
            await send(message)

        agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
        entry = AuditEntry(scope["path"], _address(scope), agent.decode("latin-1"), verb_of(scope["method"]))
        scope[ENTRY] = entry
        message = ""
        try:
            message = await self._answer(scope, receive, sending)
        finally:
            audit.record(entry, answered or 500, message)


class UsersOfFronts:
    """An ASGI application in inner processes, which only ours reach: the scope has the user whom a front passed on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            passed = next((value for name, value in scope["headers"] if name == USER_HEADER), None)
            scope[USER] = user_of(passed) if passed is not None else ANONYMOUS
        await self._app(scope, receive, send)


def users_of_calls(_: str, answer: Answer) -> Answer:
    """Calls of an inner process, see `CallsBehind`: the user whom a front passed on is the one of the call."""

    async def answered(request: object, context: CallContext) -> None:
        if passed := _metadata(context, USER_HEADER.decode()):
            current_user.set(user_of(passed.encode()))
        await answer(request, context)

    return answered


def _is_open(path: str, query: bytes) -> bool:
    """Whether nobody is asked who he is."""
    if path in HEALTH_PATHS:
        return not query  # `?verbose` says more
    return path in _SUBSCRIBERS_PATHS or path in ("/", "/ui") or path.startswith(_CONSOLE)


def _recalled(authenticator: Authenticator, scope: Scope) -> User | None:
    """Whom a request's token, which was verified before, stands for; None where there is more to look at."""
    if CLIENT_CERTIFICATE in scope.get("state", ()):
        return None
    shown: bytes | None = None
    for name, value in scope["headers"]:
        if name == AUTHORIZATION:
            if shown is not None:
                return None
            shown = value
    return authenticator.recall(shown) if shown is not None else None


def _credentials(scope: Scope) -> Credentials:
    shown = tuple(value for name, value in scope["headers"] if name == AUTHORIZATION)
    return Credentials(shown, scope.get("state", {}).get(CLIENT_CERTIFICATE, b""), _address(scope))


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _credentials_of_call(context: CallContext) -> Credentials:
    shown = tuple(value for name, value in headers_of(context) if name == AUTHORIZATION)
    chain = list(context.auth_context().get("x509_pem_cert", ()))
    return Credentials(shown, der_of(chain[0]) if chain else b"", _peer(context))


def _peer(context: CallContext) -> str:
    """The address of a client: gRPC says `ipv4:ADDRESS:PORT` or `ipv6:%5BADDRESS%5D:PORT`."""
    address = context.peer().partition(":")[2].rpartition(":")[0]
    return address.removeprefix("%5B").removesuffix("%5D").strip("[]")


def client_of_call(context: CallContext) -> str:
    """Whose call it is where nobody says who he is; see `client_of`."""
    return client_of(_peer(context))


def _metadata(context: CallContext, name: str) -> str:
    return next((str(value) for key, value in context.invocation_metadata() or () if key == name), "")


async def _abort(context: CallContext, error: HeadgateError) -> None:
    code, details, metadata = status(error)
    if isinstance(error, CredentialsRefusedError):
        metadata = (*metadata, (_CHALLENGE, error.challenge))
    await context.abort(code, details, metadata)


def _ended(context: CallContext) -> int:
    if context.cancelled():  # the usual end of a stream: the client wants no more
        return 200
    code: object = context.code()
    if isinstance(code, int):
        return 200 if code == 0 else 500
    return _HTTP_STATUSES.get(cast(grpc.StatusCode, code), 500)
