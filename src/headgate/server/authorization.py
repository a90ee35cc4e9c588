"""The gate of rights: every request of HTTP and every call of gRPC that a front takes is allowed or refused here.

A refusal comes before anything is looked up, so it does not tell whether there is such an object. A stream of gRPC is
looked at again with every message of its client: it ends when the right is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import grpc
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.auth.audit import AuditEntry
from headgate.auth.authorizer import NOTHING, OPEN, AlwaysAllow, Authorizer, ForbiddenError
from headgate.auth.context import ENTRY, USER, current_entry, current_user
from headgate.auth.event_policies import DefaultMode, EventPolicyAuthority, PublishAuthorizer
from headgate.auth.routes import (
    READ,
    SUBSCRIBE,
    EventAccess,
    events_by_call,
    events_by_request,
    has_names,
    wanted_by_call,
    wanted_by_request,
)
from headgate.auth.rules import Attributes
from headgate.auth.user import ANONYMOUS, User, impersonation_of
from headgate.objects.api.grants import Grants, is_own
from headgate.objects.store.store import Store
from headgate.objects.views.copies import EventPolicyCopy, ObjectCopy, RbacCopy
from headgate.observe.metrics import REQUESTS_REFUSED
from headgate.rpc.service import Answer, CallContext, CallsBehind, ReadAgain, headers_of
from headgate.server.listening import url_policy
from headgate.server.refusals import send_refusal
from headgate.settings import Settings
from headgate_api.errors import HeadgateError
from headgate_api.objects.kinds import Kind, ObjectKey
from headgate_api.rpc.errors import status

TargetCeiling = Callable[[ObjectKey], tuple[str, str] | None]
"""Of a trigger or subscription its broker and its ceiling, see `TargetTable.ceiling_of`; may block."""
_HIDDEN: Final = "is not shown below a ceiling, and your right to events has one"
_BELOW: Final = (
    "below a ceiling you have your events, their catalogue, why, trace, dead letters, pending events and replays, and"
    " your own triggers and subscriptions"
)


class Rights:
    """What users may do. Without a method of authentication everybody may do everything, and `events` is None."""

    def __init__(self, settings: Settings, store: Store) -> None:
        roles, policy = RbacCopy(store), url_policy(settings)
        self.copies: tuple[ObjectCopy, ...] = (roles,)
        self.grants = Grants(store, policy)
        self.events: EventPolicyAuthority | None = None
        if (mode := default_mode(settings)) is not None:
            policies = EventPolicyCopy(store, mode)
            self.copies = (roles, policies)
            self.events = policies.authority
            authorizer = PublishAuthorizer(roles.authorizer, policies.authority)
            self.grants = Grants(store, policy, authorizer, self.refresh)

    def refresh(self) -> None:
        """May block."""
        for copy in self.copies:
            copy.refresh()


def default_mode(settings: Settings) -> DefaultMode | None:
    """Who may send to a broker without EventPolicy; None where nobody is asked who he is."""
    return DefaultMode(settings.default_authorization_mode) if settings.has_authentication else None


def rights_to_events(settings: Settings, store: Store) -> Grants | None:
    """What users may have of events, as new as it was last refreshed; None where nobody is asked who he is."""
    if not settings.has_authentication:
        return None
    roles = RbacCopy(store)
    return Grants(store, url_policy(settings), roles.authorizer, roles.refresh)


class Authorization:
    """What users may ask of a front."""

    def __init__(self, authorizer: Authorizer = OPEN, target_ceiling: TargetCeiling | None = None) -> None:
        self._authorizer = authorizer
        self._ceilings = Ceilings(authorizer, target_ceiling)

    def requests(self, app: ASGIApp) -> ASGIApp:
        return AuthorizedRequests(app, self._authorizer, self._ceilings)

    def calls(self, handlers: Sequence[grpc.GenericRpcHandler]) -> list[grpc.GenericRpcHandler]:
        """Handlers of gRPC behind this; who asks for nothing need not wait for the first message."""
        if isinstance(self._authorizer, AlwaysAllow):
            return list(handlers)
        return [CallsBehind(one, self._authorized) for one in handlers]

    def _authorized(self, method: str, answer: Answer) -> Answer:
        authorizer, ceilings, access = self._authorizer, self._ceilings, events_by_call(method)

        async def authorized(request: object, context: CallContext) -> None:
            entry = current_entry.get()
            try:
                user = acting(authorizer, current_user.get(), headers_of(context), entry)
                begun: list[object] = [await context.read()] if has_names(method) else []
            except HeadgateError as error:
                await context.abort(*status(error))
            first = begun[0] if begun else None
            wanted = wanted_by_call(method, first if isinstance(first, bytes) else None)
            if (refusal := judged(authorizer, user, wanted, entry)) is not None:
                await context.abort(*status(refusal))
            try:
                held = await ceilings.held(user, wanted, access, entry)
            except HeadgateError as error:
                await context.abort(*status(error))
            current_user.set(held.user)

            def check() -> None:
                if not authorizer.allowed(user, wanted).allowed or not held.is_as_before(authorizer):
                    raise ForbiddenError(user, wanted)

            await answer(request, ReadAgain(context, *begun, check=check))

        return authorized


class AuthorizedRequests:
    """An ASGI application before another one, behind `AuthenticatedRequests`."""

    def __init__(self, app: ASGIApp, authorizer: Authorizer, ceilings: Ceilings | None = None) -> None:
        self._app = app
        self._authorizer = authorizer
        self._ceilings = ceilings or Ceilings(authorizer)
        self._is_open = isinstance(authorizer, AlwaysAllow)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not (self._is_open and ENTRY not in scope):
            entry = scope.get(ENTRY)
            try:
                user: User = scope.get(USER, ANONYMOUS)
                if not self._is_open:
                    user = acting(self._authorizer, user, scope["headers"], entry)
            except HeadgateError as error:
                await send_refusal(error, scope, send)
                return
            scope[USER] = user
            wanted = wanted_by_request(scope["method"], scope["path"], scope["query_string"])
            if (refusal := judged(self._authorizer, user, wanted, entry)) is not None:
                await send_refusal(refusal, scope, send)
                return
            if self._authorizer.has_ceilings(user, ""):
                access = events_by_request(scope["method"], scope["path"])
                try:
                    scope[USER] = (await self._ceilings.held(user, wanted, access, entry)).user
                except HeadgateError as error:
                    await send_refusal(error, scope, send)
                    return
        await self._app(scope, receive, send)


# --- ceilings -------------------------------------------------------------------------------------
# Of whoever has a right to a broker's events below a ceiling. How it holds is in the table of routes; what it is, the
# authorizer says.


@dataclass(frozen=True, slots=True)
class HeldBelow:
    """A user whose request was let through, and the ceiling that it is let through below; empty for none."""

    user: User
    wanted: Attributes = READ
    ceiling: str = ""

    def is_as_before(self, authorizer: Authorizer) -> bool:
        return not self.wanted.name or authorizer.ceiling(self.user, self.wanted) == self.ceiling


class Ceilings:
    """Lets a request through below the user's ceiling, or refuses it; all of `OWN` where it knows no target's."""

    def __init__(self, authorizer: Authorizer, target_ceiling: TargetCeiling | None = None) -> None:
        self._authorizer = authorizer
        self._target_ceiling = target_ceiling

    async def held(
        self, user: User, wanted: Attributes, access: EventAccess, entry: AuditEntry | None = None
    ) -> HeldBelow:
        """The user as the request goes on; ForbiddenError."""
        if not self._authorizer.has_ceilings(user, ""):
            is_named = access is EventAccess.JOINED
            return HeldBelow(user, READ.on(f"{wanted.namespace}/{wanted.name}")) if is_named else HeldBelow(user)
        if access is EventAccess.JOINED:
            right = READ.on(f"{wanted.namespace}/{wanted.name}")
            ceiling = self._authorizer.ceiling(user, right)
            return HeldBelow(replace(user, ceiling=ceiling), right, ceiling)
        if access is EventAccess.REFUSED:
            raise self._refused(user, wanted, _HIDDEN, entry)
        if access is EventAccess.OWN:
            return await self._of_target(user, wanted, entry)
        if access is EventAccess.EACH and wanted.resource == Kind.TRIGGER.plural:
            await self._of_target(user, wanted, entry)
        if access in (EventAccess.EACH, EventAccess.SHOWN):  # whoever does not look at each tells nothing of them
            return HeldBelow(replace(user, ceiling=NOTHING))
        return HeldBelow(user)

    async def _of_target(self, user: User, wanted: Attributes, entry: AuditEntry | None) -> HeldBelow:
        kind = Kind.SUBSCRIPTION if wanted.resource == Kind.SUBSCRIPTION.plural else Kind.TRIGGER
        key = ObjectKey(kind, wanted.namespace, wanted.name)
        if self._target_ceiling is None:
            raise self._refused(user, wanted, _HIDDEN, entry)
        found = await asyncio.to_thread(self._target_ceiling, key)
        if found is None:
            return HeldBelow(user)  # there is no such object, which is the answer
        broker, below = found
        right = SUBSCRIBE.on(broker)
        ceiling = self._authorizer.ceiling(user, right)
        if not await asyncio.to_thread(is_own, self._authorizer, user, broker, below):
            raise self._refused(user, wanted, "gets events that your right does not give: its ceiling is wider", entry)
        return HeldBelow(replace(user, ceiling=ceiling), right, ceiling)

    def _refused(self, user: User, wanted: Attributes, detail: str, entry: AuditEntry | None) -> ForbiddenError:
        error = ForbiddenError(user, wanted, detail, hint=_BELOW)
        REQUESTS_REFUSED.labels(error.code).inc()
        if entry is not None:
            entry.refused(detail)
        return error


def acting(
    authorizer: Authorizer, user: User, headers: Iterable[tuple[bytes, bytes]], entry: AuditEntry | None
) -> User:
    """As whom a request is made: by who makes it, or by another one whom its headers ask for. The audit hears of it."""
    if (asked := impersonation_of(headers)) is None:
        return user
    for wanted in asked.needed:
        if (error := judged(authorizer, user, wanted, entry)) is not None:
            raise error
    if entry is not None:
        entry.impersonated = asked.user
    return asked.user


def judged(
    authorizer: Authorizer, user: User, wanted: Attributes, entry: AuditEntry | None = None
) -> ForbiddenError | None:
    """Why a user may not have what he asks for; None when he may. The audit's entry hears of it."""
    decision = authorizer.allowed(user, wanted)
    if entry is not None:
        entry.decided(wanted, is_allowed=decision.allowed, reason=decision.reason)
    if decision.allowed:
        return None
    error = ForbiddenError(user, wanted)
    REQUESTS_REFUSED.labels(error.code).inc()
    return error
