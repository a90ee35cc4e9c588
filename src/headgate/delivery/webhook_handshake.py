"""The CloudEvents webhook handshake: a subscriber is asked whether it wants deliveries before it gets any.

    OPTIONS, WebHook-Request-Origin -> WebHook-Allowed-Origin: granted | nothing: refused, until the callback is called

Specification: CloudEvents, HTTP 1.1 Web Hooks for Event Delivery, section 4.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from headgate.delivery.circuit import Rate
from headgate.delivery.post import PostOptions, Transport
from headgate.delivery.retry import HANDSHAKE, Clocks, Outcome
from headgate.objects.kinds.routing import DeliveryRules
from headgate.objects.store.handshake_grants import PATH, HandshakeGrants, allowed_per_s
from headgate.observe.logs import tell_failure
from headgate_api import limits
from headgate_api.errors import UnavailableError

ORIGIN: Final = "webhook-request-origin"
_ANSWERS: Final = ("webhook-allowed-origin", "webhook-allowed-rate")


@dataclass(slots=True)
class _Known:
    problem: str  # why nothing may be sent; empty for leave
    rate: Rate | None  # how often; None for no bound
    until: float  # when it is asked again, monotonic seconds


class Handshakes:
    """Permissions of all URLs, on one event loop. The host of `public_url` is the origin.

    `is_own` says whether a URL is a broker of this server, which needs no permission; with `always` everybody is asked,
    and not only whose rules say so.
    """

    def __init__(
        self,
        transport: Transport,
        grants: HandshakeGrants,
        public_url: str,
        clocks: Clocks,
        *,
        is_own: Callable[[str], bool] = lambda _: False,
        always: bool = False,
    ) -> None:
        self._transport = transport
        self._grants = grants
        self._public_url = public_url
        self._clocks = clocks
        self._is_own = is_own
        self._always = always
        self.origin = urlsplit(public_url).hostname or "headgate"
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_Known]] = {}

    def wanted(self, rules: DeliveryRules, url: str) -> bool:
        """Whether somebody is asked before events are sent to a URL."""
        return (self._always or rules.handshake) and not self._is_own(url)

    def per_s(self, url: str) -> float | None:
        """The rate that a URL allows, as far as it is known; None for no bound."""
        known = self._known.get(url)
        return known.rate.per_s if known is not None and known.rate is not None else None

    async def refusal(
        self, url: str, rate_per_s: float | None, options: PostOptions | None, wait_s: float
    ) -> Outcome | None:
        """Why nothing may be sent to a URL now; None when it may, and an attempt has been counted.

        `rate_per_s` is how often it would be sent to, None for no bound; `wait_s` how long to wait for a turn at most.
        """
        known = self._known.get(url)
        if known is None or self._clocks.now() >= known.until:
            task = self._asking.get(url)
            if task is None:
                task = self._asking[url] = asyncio.create_task(self._ask(url, rate_per_s, options))
                task.add_done_callback(lambda done: self._asked(url, done))
            known = await asyncio.shield(task)
        if known.problem:
            return Outcome(0, HANDSHAKE, f"HandshakeRefused: {known.problem}")
        if known.rate is not None:
            turn_s = known.rate.wait_s(self._clocks.now())
            if turn_s > wait_s:
                return Outcome(0, HANDSHAKE, f"AllowedRate: {known.rate.per_s * 60:.0f} requests a minute are allowed")
            known.rate.take(self._clocks.now())
            if turn_s > 0:
                await asyncio.sleep(turn_s)
        return None

    async def refresh(self) -> None:
        """Permissions may have come by callback: forget who refused and has one now."""
        refused = [url for url, known in self._known.items() if known.problem][: limits.HANDSHAKE_REFUSALS_CHECKED_MAX]
        if refused:
            granted = await asyncio.to_thread(lambda: [url for url in refused if self._grants.get(url) is not None])
            for url in granted:
                self._known.pop(url, None)

    def _asked(self, url: str, task: asyncio.Task[_Known]) -> None:
        self._asking.pop(url, None)
        tell_failure(task, "a handshake failed")

    async def _ask(self, url: str, rate_per_s: float | None, options: PostOptions | None) -> _Known:
        problem, per_s = await self._answer(url, rate_per_s, options)
        before = self._known.get(url)
        rate = Rate.of(per_s, before.rate if before is not None else None) if per_s is not None else None
        kept_s = limits.HANDSHAKE_RETRY_S if problem else limits.HANDSHAKE_S
        known = self._known[url] = _Known(problem, rate, self._clocks.now() + kept_s)
        while len(self._known) > limits.ROUTES_KEPT_MAX:
            self._known.popitem(last=False)
        return known

    async def _answer(
        self, url: str, rate_per_s: float | None, options: PostOptions | None
    ) -> tuple[str, float | None]:
        """Why nothing may be sent, or nothing; and how often."""
        try:
            grant, query = await asyncio.to_thread(lambda: (self._grants.get(url), self._grants.query(url)))
        except UnavailableError as error:
            return error.message, None
        if grant is not None:
            return "", grant.per_s
        headers = [(ORIGIN, self.origin)]
        if query:
            headers.append(("webhook-request-callback", f"{self._public_url}{PATH}?{query}"))
        if rate_per_s is not None:
            headers.append(("webhook-request-rate", str(max(1, int(rate_per_s * 60)))))
        tls = options.tls if options is not None else None
        asked = PostOptions(tls=tls, method="OPTIONS", kept_headers=_ANSWERS)
        outcome = await self._transport.post(url, headers, b"", limits.HANDSHAKE_ANSWER_S_MAX, asked)
        if outcome.reason:
            return f"{outcome.reason}: {outcome.detail}", None
        answer = dict(outcome.headers)
        if answer.get("webhook-allowed-origin", "").strip() not in ("*", self.origin):
            return f"it did not allow {self.origin} (status {outcome.status}, no WebHook-Allowed-Origin)", None
        try:
            return "", allowed_per_s(answer.get("webhook-allowed-rate"))
        except ValueError as error:
            return str(error), None
