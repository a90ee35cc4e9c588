"""The API of a dispatcher's replays: begin one, look at them, cancel one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.auth.authorizer import NOTHING, ForbiddenError
from headgate.auth.routes import READ
from headgate.auth.user import User
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.tools.ceiling import joined
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import decoded_as, in_thread, json_response, path_id, read_body
from headgate.objects.api.queries import user_of
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.store.store import Store
from headgate.replay.sender import Replaying
from headgate.replay.store import Replay, ReplaySpec
from headgate.scan.source import NEXT, ReadableLog, start_offsets
from headgate_api import limits, positions
from headgate_api.errors import InvalidInputError, NotFoundError
from headgate_api.event import rfc3339
from headgate_api.event.names import full_name, identity, path_of
from headgate_api.objects.kinds import OWN_API_VERSION, JsonObject, Kind, ObjectKey, Trigger

BASE: Final = f"/apis/{OWN_API_VERSION}/namespaces/{{namespace}}/replays"


class ReplayNotFoundError(NotFoundError):
    """No replay has this id; the oldest that ended are forgotten."""

    code = "replay-not-found"


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a person asks for: history of a broker, of which a trigger or a URL gets the events that a filter takes."""

    broker: str = ""  # may be left out with a trigger
    trigger: str = ""
    url: str = ""
    from_: str = msgspec.field(name="from", default="earliest")  # earliest, a time or a position
    to: str = NEXT  # exclusive: next (now), a time or a position
    filter: str | dict[str, object] = ""  # CEL, or an object as in a trigger's spec.filter
    rate: float = limits.REPLAY_RATE_DEFAULT  # events a second at most
    dry_run: bool = False  # only counts


class ReplaysApi:
    """The handlers."""

    def __init__(
        self,
        replays: Replaying,
        log: ReadableLog,
        store: Store,
        policy: UrlPolicy,
        rights: Grants | None = None,
    ) -> None:
        self._replays = replays
        self._log = log
        self._objects = store
        self._policy = policy
        self._rights = rights

    def routes(self) -> Iterator[Route]:
        yield Route(BASE, self._list, methods=["GET"])
        yield Route(BASE, self._create, methods=["POST"])
        yield Route(f"{BASE}/{{id}}", self._show, methods=["GET"])
        yield Route(f"{BASE}/{{id}}/cancel", self._cancel, methods=["POST"])

    async def _list(self, request: Request) -> Response:
        found, user = await self._replays.page(request.path_params["namespace"]), user_of(request)
        if user.ceiling:
            found = await in_thread(self._own, user, found)
        return json_response({"items": [_view(replay, is_below=bool(user.ceiling)) for replay in found]})

    async def _show(self, request: Request) -> Response:
        return json_response(_view(await self._found(request), is_below=bool(user_of(request).ceiling)))

    async def _cancel(self, request: Request) -> Response:
        found = await self._found(request)
        return json_response({"cancelled": await self._replays.cancel(found.id)})

    async def _create(self, request: Request) -> Response:
        asked = await decoded_as(request, await read_body(request), ReplayRequest, "the body is no replay")
        user = user_of(request)
        spec = await in_thread(self._spec, request.path_params["namespace"], asked, user)
        made = await self._replays.create(spec)
        return json_response(_view(made, is_below=bool(user.ceiling)), status_code=201)

    async def _found(self, request: Request) -> Replay:
        namespace, id_ = request.path_params["namespace"], path_id(request)
        found, user = await self._replays.get(namespace, id_), user_of(request)
        if found is None or (user.ceiling and not await in_thread(self._own, user, [found])):
            hint = f"headgate replay list -n {namespace} lists them"
            raise ReplayNotFoundError(f"there is no replay {id_}", hint=hint)
        return found

    def _own(self, user: User, replays: Sequence[Replay]) -> list[Replay]:
        """Those of which a user below a ceiling may know all that they count. Blocking."""
        rights = self._rights
        if rights is None:
            return []
        rights.refresh()
        return [one for one in replays if rights.knows(user, path_of(one.spec.broker), one.spec.ceiling)]

    def _ceiling(self, user: User, broker: str) -> str:
        """Below what a user gets the events of a broker; empty for all. Raises ForbiddenError where he gets none."""
        if not user.ceiling:
            return ""
        if self._rights is not None:
            self._rights.refresh()
        ceiling = self._rights.ceiling_on(user, broker) if self._rights is not None else NOTHING
        if ceiling == NOTHING:
            raise ForbiddenError(user, READ.on(broker))
        return ceiling

    def _spec(self, namespace: str, asked: ReplayRequest, user: User) -> ReplaySpec:
        """Checked; blocking."""
        if bool(asked.trigger) == bool(asked.url):
            raise InvalidInputError("a replay has one target: trigger or url")
        least, most = limits.RATE_PER_S_MIN, limits.REPLAY_RATE_MAX
        if not least <= asked.rate <= most:
            raise InvalidInputError(f"rate must be from {least:g} to {most:.0f} events a second")
        broker = full_name(asked.broker, namespace) if asked.broker else ""
        if asked.trigger:
            trigger = self._objects.get(ObjectKey(Kind.TRIGGER, namespace, asked.trigger))
            assert isinstance(trigger, Trigger)
            if broker and broker != trigger.broker_key:
                raise InvalidInputError(f"trigger {asked.trigger!r} is of broker {trigger.broker_key!r}")
            broker = trigger.broker_key
        elif not broker:
            raise InvalidInputError("broker is missing: whose history is it?")
        else:
            self._policy.check(asked.url)
        place, _, name = broker.partition("/")
        if place != namespace and not asked.trigger:
            raise InvalidInputError(f"broker {broker!r} is not in namespace {namespace!r}, the replay's")
        ceiling = self._ceiling(user, broker)  # first: who gets nothing of a broker does not learn whether it is there
        found = self._objects.get(ObjectKey(Kind.BROKER, place, name))
        written = {"cel": asked.filter} if isinstance(asked.filter, str) else asked.filter
        cel = joined(compile_filter(written, ()).cel if asked.filter else "", ceiling)
        now = start_offsets(self._log, NEXT)
        begin, end = start_offsets(self._log, asked.from_), start_offsets(self._log, asked.to)
        end = {partition: min(at, now[partition]) for partition, at in end.items()}
        begin = {partition: min(at, end[partition]) for partition, at in begin.items()}
        return ReplaySpec(
            namespace=namespace,
            broker=identity(broker, found.metadata.uid),
            trigger=asked.trigger,
            url=asked.url,
            cel=cel,
            start=begin,
            end=end,
            rate_per_s=asked.rate,
            dry_run=asked.dry_run,
            created_us=time.time_ns() // 1_000,
            owner="" if user.is_anonymous else user.name,
            groups=user.groups if self._rights is not None else (),
            ceiling=ceiling,
        )


def _view(replay: Replay, *, is_below: bool) -> JsonObject:
    """What is told of a replay; to a user below a ceiling nothing that other events count in."""
    spec, progress = replay.spec, replay.progress
    seen: JsonObject = {
        "id": replay.id,
        "state": replay.state,
        "broker": path_of(spec.broker),
        "trigger": spec.trigger,
        "url": spec.url,
        "filter": spec.cel,
        "rate": spec.rate_per_s,
        "dryRun": spec.dry_run,
        "created": rfc3339.text(spec.created_us),
        "matched": progress.matched,
        "delivered": progress.delivered,
        "deadLettered": progress.dead_lettered,
        "failed": progress.failed,
        "lost": progress.lost,
        "problem": replay.problem,
    }
    if is_below:
        return seen
    return seen | {
        "start": positions.write(spec.start),
        "end": positions.write(spec.end),
        "position": positions.write(progress.positions),
        "eventsPassed": sum(progress.positions[partition] - at for partition, at in spec.start.items()),
        "eventsTotal": sum(spec.end[partition] - at for partition, at in spec.start.items()),
        "filterErrors": progress.errors,
    }
