"""The addresses that URLs lead to: resolved here, judged, and connected to.

An HTTP client that resolves by itself could be told a harmless address when we ask and another when it connects (DNS
rebinding). So a connection is opened to the address that was judged; the name is in the Host header, and for TLS the
certificate must bear it.

"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from headgate.auth.context import current_user
from headgate.auth.user import namespace_of_account
from headgate.delivery.http_connections import ConnectionPool, ConnectionPools, tls_context
from headgate.delivery.retry import CREDENTIALS, Outcome
from headgate.objects.kinds.credentials import ClientTls, CredentialsError
from headgate.objects.kinds.egress import Address, Endpoint, UrlPolicy, UrlRefusedError
from headgate.shares import FairThreads
from headgate.storage.threads import cancel_all
from headgate_api import limits

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to addresses as text, the best first. OSError when there are none, ValueError for no host."""

RouteKey = tuple[str, ClientTls | None]
"""A URL, and what TLS trusts and shows there."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One address of a URL; `head` follows the method in a request's head, with the Host header."""

    pool: ConnectionPool
    head: str


@dataclass(slots=True)
class Route:
    """Where a URL leads."""

    hops: list[Hop]  # its addresses that may be connected to, the last one that worked first
    refusal: Outcome | None  # why there is none
    fresh_until: float  # loop time; it is renewed then
    stale_until: float  # loop time; it does not serve any longer then

    def prefer(self, hop: Hop) -> None:
        """This one worked where another did not."""
        if self.hops[0] is not hop and hop in self.hops:
            self.hops.remove(hop)
            self.hops.insert(0, hop)


class Routes:
    """Routes of all URLs that are sent to, on one event loop. Without `resolve` the system resolves names.

    A route is renewed beside while the old one serves: a resolver that hangs for one name delays no other that is
    known. Namespaces and their triggers have shares of the threads that ask it.
    """

    def __init__(self, policy: UrlPolicy, pools: ConnectionPools, resolve: Resolve | None = None) -> None:
        self._policy = policy
        self._pools = pools
        self._threads = FairThreads(limits.DNS_THREADS_MAX, "dns", hangs=True)
        self._resolve = resolve if resolve is not None else self._ask_system
        self._loop = asyncio.get_running_loop()
        self._routes: OrderedDict[RouteKey, Route] = OrderedDict()
        self._finding: dict[tuple[str, RouteKey], asyncio.Task[Route]] = {}
        """By namespace too: none waits where another one has its share of the threads."""
        self._contexts: OrderedDict[ClientTls | None, ssl.SSLContext] = OrderedDict()

    def known(self, url: str, tls: ClientTls | None = None) -> Route | None:
        """The route of a URL when nothing has to be waited for; a stale one is renewed beside."""
        route = self._routes.get((url, tls))
        if route is None:
            return None
        now = self._loop.time()
        if now >= route.fresh_until:
            if now >= route.stale_until:
                return None
            self._find((url, tls))
        return route

    async def find(self, url: str, wait_s: float, tls: ClientTls | None = None) -> Route:
        """The route of a URL; waits `wait_s` and DNS_S_MAX at most. Who asks is the `current_user`."""
        task = self._find((url, tls))
        wait_s = min(wait_s, limits.DNS_S_MAX)
        done, _ = await asyncio.wait([task], timeout=wait_s)
        if not done:
            return self._failed("timeout", f"the name was not resolved within {wait_s:g} s", 0.0)
        return task.result()

    async def close(self) -> None:
        await cancel_all(self._finding.values())
        self._threads.give_up()

    # --- inside ---------------------------------------------------------------------------------------

    def _find(self, key: RouteKey) -> asyncio.Task[Route]:
        asked = namespace_of_account(current_user.get().name), key
        task = self._finding.get(asked)
        if task is None:
            task = self._finding[asked] = self._loop.create_task(self._look_up(key))
            task.add_done_callback(lambda _: self._finding.pop(asked, None))
        return task

    async def _look_up(self, key: RouteKey) -> Route:
        route = self._routes[key] = await self._looked_up(key)
        self._routes.move_to_end(key)
        while len(self._routes) > limits.ROUTES_KEPT_MAX:
            self._routes.popitem(last=False)
        return route

    async def _looked_up(self, key: RouteKey) -> Route:
        url, tls = key
        try:
            destination = self._policy.check(url)
            context = await self._context(tls) if destination.scheme == "https" else None
        except UrlRefusedError as error:
            return self._failed("policy", error.message, limits.DNS_STALE_S)
        except CredentialsError as error:
            return self._failed(CREDENTIALS, str(error), limits.DNS_FAILURE_S)
        if destination.address is not None:
            return Route([self._hop(destination, destination.address, context)], None, math.inf, math.inf)
        try:
            addresses = await self._resolve(destination.host, destination.port)
            return self._judge(destination, addresses, context)
        except (OSError, ValueError) as error:  # the latter for a name that cannot be asked for
            old = self._routes.get(key)
            if old is not None and old.hops and self._loop.time() < old.stale_until:
                old.fresh_until = self._loop.time() + limits.DNS_FAILURE_S
                return old
            return self._failed("dns", f"{destination.host}: {_words(error)}", limits.DNS_FAILURE_S)

    def _judge(self, destination: Endpoint, addresses: list[str], context: ssl.SSLContext | None) -> Route:
        """The addresses that the policy lets through; all others are as if they were not there."""
        good: list[Address] = []
        problem = ""
        for text in dict.fromkeys(addresses):
            address = ipaddress.ip_address(text.partition("%")[0])
            found = self._policy.problem(destination, address)
            problem = problem or found
            if not found:
                good.append(address)
        if not good:
            why = f"{destination.host}: {problem or 'no address'}"
            return self._failed("policy", why, limits.DNS_FAILURE_S)
        now = self._loop.time()
        hops = [self._hop(destination, address, context) for address in good[: limits.DNS_ADDRESSES_MAX]]
        return Route(hops, None, now + limits.DNS_TTL_S, now + limits.DNS_STALE_S)

    def _hop(self, destination: Endpoint, address: Address, context: ssl.SSLContext | None) -> Hop:
        # A dot ends a name for the resolver alone: no certificate bears it.
        name = destination.host.removesuffix(".") if context is not None else ""
        pool = self._pools.pool(str(address), destination.port, context, name)
        host = f"host: {destination.authority}"
        return Hop(pool, f" {destination.target} HTTP/1.1\r\n{host}\r\naccept: */*\r\naccept-encoding: identity\r\n")

    async def _context(self, tls: ClientTls | None) -> ssl.SSLContext:
        """Raises CredentialsError when TLS cannot use what it is given."""
        found = self._contexts.get(tls)
        if found is None:
            found = self._contexts[tls] = await self._loop.run_in_executor(self._share(), tls_context, tls)
            while len(self._contexts) > limits.TLS_CONTEXTS_MAX:
                self._contexts.popitem(last=False)
        else:
            self._contexts.move_to_end(tls)
        return found

    def _failed(self, reason: str, detail: str, kept_s: float) -> Route:
        until = self._loop.time() + kept_s
        return Route([], Outcome(0, reason, detail), until, until)

    async def _ask_system(self, host: str, port: int) -> list[str]:
        # In threads of its own: names that hang must not take the threads of disk and database.
        return await self._loop.run_in_executor(self._share(), _addresses, host, port)

    def _share(self) -> Executor:
        name = current_user.get().name
        return self._threads.of(namespace_of_account(name), name)


def _addresses(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _words(error: OSError | ValueError) -> str:
    """Why a name was not found, without the system's number for it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
