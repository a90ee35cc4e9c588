"""The addresses that URLs lead to: resolved here, judged, and pinned, so that what was judged is connected to.

An HTTP client that resolves by itself could be told a harmless address when we ask and another when it connects (DNS
rebinding). So a plain URL goes out with the address in place of the name and the name in its Host header; a TLS URL
keeps the name, which the certificate must bear, in a client of its own whose resolver knows this one address.

A route is kept for DNS_TTL_S, then renewed in the background while the old one serves for up to DNS_STALE_S: a resolver
that hangs for one name delays no other that is known.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pyreqwest.client import Client

from headgate import limits
from headgate.control.credentials import ClientTls, CredentialsError
from headgate.control.egress import Address, Endpoint, UrlPolicy, UrlRefusedError
from headgate.delivery.retry import CREDENTIALS, Outcome

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to addresses as text, the best first. OSError when there are none, ValueError for no host."""

RouteKey = tuple[str, ClientTls | None]
"""A URL, and what TLS trusts and shows there."""
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Hop:
    """One address of a URL.

    Attributes:
        url: What the client is given.
        headers: To be sent beside the event's: the name, where `url` has an address instead.
        client: Who sends it.
    """

    url: str
    headers: tuple[tuple[str, str], ...]
    client: Client


@dataclass(slots=True)
class Route:
    """Where a URL leads.

    Attributes:
        hops: Its addresses that may be connected to, the last one that worked first.
        refusal: Why there is none.
        fresh_until: Loop time; it is renewed then.
        stale_until: Loop time; it does not serve any longer then.
    """

    hops: list[Hop]
    refusal: Outcome | None
    fresh_until: float
    stale_until: float

    def prefer(self, hop: Hop) -> None:
        """This one worked where another did not."""
        if self.hops[0] is not hop and hop in self.hops:
            self.hops.remove(hop)
            self.hops.insert(0, hop)


class Routes:
    """Routes of all URLs that are sent to. Lives on one event loop.

    Args:
        policy: Which URLs and addresses.
        plain: The client for URLs that need no resolver.
        make_client: Makes a client that connects to an address for a name, if it is not empty, and what TLS trusts and
            shows; it blocks for some milliseconds.
        resolve: None for the system's resolver.
    """

    def __init__(
        self,
        policy: UrlPolicy,
        plain: Client,
        make_client: Callable[[str, str, ClientTls | None], Client],
        resolve: Resolve | None = None,
    ) -> None:
        self._policy = policy
        self._plain = plain
        self._make_client = make_client
        self._threads = ThreadPoolExecutor(limits.DNS_THREADS_MAX, thread_name_prefix="dns")
        self._resolve = resolve if resolve is not None else self._ask_system
        self._loop = asyncio.get_running_loop()
        self._routes: OrderedDict[RouteKey, Route] = OrderedDict()
        self._finding: dict[RouteKey, asyncio.Task[Route]] = {}
        self._pinned: OrderedDict[tuple[str, str, ClientTls | None], Client] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

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
        """The route of a URL; shared by all who ask at the same time. Waits `wait_s` and DNS_S_MAX at most."""
        task = self._find((url, tls))
        wait_s = min(wait_s, limits.DNS_S_MAX)
        done, _ = await asyncio.wait([task], timeout=wait_s)
        if not done:
            return self._failed("timeout", f"the name was not resolved within {wait_s:g} s", 0.0)
        return task.result()

    async def close(self) -> None:
        """Close the clients of names; the plain one is its owner's."""
        for task in self._finding.values():
            task.cancel()
        await asyncio.gather(*self._finding.values(), *self._closing, return_exceptions=True)
        for client in self._pinned.values():
            await client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- inside ---------------------------------------------------------------------------------------

    def _find(self, key: RouteKey) -> asyncio.Task[Route]:
        task = self._finding.get(key)
        if task is None:
            task = self._finding[key] = self._loop.create_task(self._look_up(key))
            task.add_done_callback(lambda _: self._finding.pop(key, None))
        return task

    async def _look_up(self, key: RouteKey) -> Route:
        try:
            return await self._looked_up(key)
        except CredentialsError as error:
            return self._keep(key, self._failed(CREDENTIALS, str(error), limits.DNS_FAILURE_S))

    async def _looked_up(self, key: RouteKey) -> Route:
        url, tls = key
        try:
            destination = self._policy.check(url)
        except UrlRefusedError as error:
            return self._keep(key, self._failed("policy", error.message, limits.DNS_STALE_S))
        if destination.scheme != "https":
            tls = None
        if destination.address is not None:
            forever = float("inf")
            client = self._plain if tls is None else await self._client_for("", "", tls)
            return self._keep(key, Route([Hop(destination.url, (), client)], None, forever, forever))
        try:
            addresses = await self._resolve(destination.host, destination.port)
            return self._keep(key, await self._judge(destination, addresses, tls))
        except (OSError, ValueError) as error:  # the latter for a name that cannot be asked for
            old = self._routes.get(key)
            if old is not None and old.hops and self._loop.time() < old.stale_until:
                old.fresh_until = self._loop.time() + limits.DNS_FAILURE_S
                return old
            return self._keep(key, self._failed("connection", f"{destination.host}: {error}", limits.DNS_FAILURE_S))

    async def _judge(self, destination: Endpoint, addresses: list[str], tls: ClientTls | None) -> Route:
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
        hops = [await self._hop(destination, address, tls) for address in good[: limits.DNS_ADDRESSES_MAX]]
        return Route(hops, None, now + limits.DNS_TTL_S, now + limits.DNS_STALE_S)

    async def _hop(self, destination: Endpoint, address: Address, tls: ClientTls | None) -> Hop:
        if destination.scheme == "https":
            return Hop(destination.url, (), await self._client_for(destination.host, str(address), tls))
        host = f"[{address}]" if address.version == 6 else str(address)
        scheme, rest = destination.url.split("://", 1)
        named, slash, path = rest.partition("/")
        port = "" if destination.port == _PORTS[scheme] else f":{destination.port}"
        return Hop(f"{scheme}://{host}{port}{slash}{path}", (("host", named),), self._plain)

    async def _client_for(self, host: str, address: str, tls: ClientTls | None) -> Client:
        key = (host, address, tls)
        client = self._pinned.get(key)
        if client is None:
            client = await self._loop.run_in_executor(self._threads, self._make_client, host, address, tls)
            self._pinned[key] = client
            while len(self._pinned) > limits.TLS_CLIENTS_MAX:
                _, old = self._pinned.popitem(last=False)
                task = self._loop.create_task(old.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        else:
            self._pinned.move_to_end(key)
        return client

    def _failed(self, reason: str, detail: str, kept_s: float) -> Route:
        until = self._loop.time() + kept_s
        return Route([], Outcome(0, reason, detail), until, until)

    def _keep(self, key: RouteKey, route: Route) -> Route:
        self._routes[key] = route
        self._routes.move_to_end(key)
        while len(self._routes) > limits.ROUTES_KEPT_MAX:
            self._routes.popitem(last=False)
        return route

    async def _ask_system(self, host: str, port: int) -> list[str]:
        # In threads of its own: names that hang must not take the threads of disk and database.
        return await self._loop.run_in_executor(self._threads, _addresses, host, port)


def _addresses(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
