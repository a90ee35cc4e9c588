"""The egress policy: which schemes, ports and addresses events may go to. Pure: it resolves no name.

A URL is read once, as browsers read it (WHATWG): `http://0x7f.1/`, `http://2130706433/` and
`http://[::ffff:127.0.0.1]/` are addresses. What is sent is made of what was judged. A host that is an address is judged
at admission; a name is judged address by address when it is resolved, and only an address that was judged is connected
to.

This server's own listeners take events at the publish URIs of its brokers and nowhere else: whoever may publish an
event, or create a trigger, must not make the server speak to its own API.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from pyreqwest.http import Url

from headgate_api.errors import InvalidInputError
from headgate_api.limits import HOST_LABEL_CHARS_MAX, URL_CHARS_MAX

RESERVED_NAMESPACES: Final = frozenset(
    {"api", "apis", "openapi", "version", "livez", "readyz", "healthz", "metrics", "admission", "ui"} | {".well-known"}
)
"""First path segments of the HTTP port that are not namespaces."""


def published_broker(path: str) -> str:
    """`namespace/name` of the broker that takes events at a path, percent-decoded; empty for every other path."""
    parts = path.removesuffix("/").split("/")
    if len(parts) == 3 and parts[1] and parts[2] and parts[1] not in RESERVED_NAMESPACES:
        return f"{parts[1]}/{parts[2]}"
    return ""


Reach = Literal["local", "public"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("fd00:ec2::254", "fd20:ce::254", "fd00:42::42"),
    )
)
"""Where clouds give credentials to programs inside; most are link-local, these are named all the same."""


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


_NEVER: Final = _networks("0.0.0.0/8", "240.0.0.0/4", "::/128")
_GLOBAL: Final = _networks(
    *("0.0.0.0/0", "192.0.0.9/32", "192.0.0.10/32"),
    *("2000::/3", "64:ff9b::/96", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128"),
    *("2001:3::/32", "2001:4:112::/48", "2001:20::/28", "2001:30::/28"),
)
_NOT_GLOBAL: Final = _networks(
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
    *("198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
    *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
)
"""Special-purpose addresses by IANA's registries (RFC 6890, as of 2026). Of two networks that hold an address, the
smaller one says whether the Internet routes it; what is in none is not routed. RFC 7526 withdrew 6to4 and its relays.
"""
_WRITTEN: Final = re.compile(r"https?://[^/\\#\x00-\x20\x7f][^\\#\x00-\x20\x7f]*", re.IGNORECASE)
"""What a reader of RFC 3986 and one of WHATWG take for the same URL, without a fragment, which is never sent."""
_CONTROL: Final = re.compile(r"%(?:[01][0-9a-f]|7f)", re.IGNORECASE)
_V4_AT_END: Final = _networks("::/96", "64:ff9b::/96", "64:ff9b:1::/48")
"""Ranges that carry an IPv4 address in their last 32 bits: IPv4-compatible and NAT64."""
_OWN_API: Final = "is this server's own API; events may go to its brokers only, /{namespace}/{broker}"
_PORTS: Final = {"http": 80, "https": 443}
_LOOPBACK6: Final = ipaddress.IPv6Address("::1")


class UrlRefusedError(InvalidInputError):
    """The policy does not let events go to this URL."""

    code = "url-refused"
    http_status = 422


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL that the policy lets through, as far as it can be judged without resolving a name.

    `host` is lower case, a name in ASCII or an address without brackets; as `address` it has been judged. `authority`
    is as a Host header has it, without the scheme's own port, `target` (path and query) as a request line does. It
    `publishes` when its path is a broker's, if it is this server, and is `trusted` when it is a broker of this server:
    its addresses are not judged.
    """

    url: str
    scheme: str
    host: str
    port: int
    address: Address | None
    authority: str
    target: str
    publishes: bool
    trusted: bool


@dataclass(frozen=True)
class Listener:
    """A port on which this server itself listens; `host` is as in the settings, empty when it is an address.

    `is_at` says whether a connection to an address and the port reaches it, `takes_events` whether brokers' paths are
    there.
    """

    host: str
    port: int
    is_at: Callable[[Address], bool]
    takes_events: bool


@dataclass(frozen=True)
class UrlPolicy:
    """Which URLs events may go to.

    Attributes:
        reach: `local`: every address but link-local ones, cloud metadata, multicast and what is no address of a host.
            `public`: of those only what is routed in the Internet.
        allow: Networks that `reach` does not judge.
        ports: Ranges, both ends included; empty for every port.
        own_url: This server's address: its brokers may always be sent to.
        own: Where this server listens: of that, brokers may be sent to and nothing else.
    """

    reach: Reach = "local"
    allow: tuple[Network, ...] = ()
    deny: tuple[Network, ...] = ()
    schemes: frozenset[str] = frozenset({"http", "https"})
    ports: tuple[tuple[int, int], ...] = ()
    own_url: str = ""
    own: tuple[Listener, ...] = ()

    def check(self, url: str) -> Endpoint:
        """Judges a URL; UrlRefusedError has the reason why the policy refuses it."""
        if len(url) > URL_CHARS_MAX:
            raise UrlRefusedError(f"a URL has at most {URL_CHARS_MAX} characters")
        if "#" in url:
            raise UrlRefusedError("must not have a fragment (#...): it is never sent")
        if not _WRITTEN.fullmatch(url):
            problem = r"must be an absolute URL, http://host/... or https://host/..., without spaces and \ "
            raise UrlRefusedError(problem)
        if _CONTROL.search(url.partition("?")[0]):
            raise UrlRefusedError("must not have control characters in its path, nor percent-encoded ones (%0d)")
        try:
            parsed = Url(url)
            scheme, host, port = parsed.scheme, parsed.host_str, parsed.port_or_known_default
        except ValueError as error:
            raise UrlRefusedError(f"no URL: {error}") from error
        if scheme not in ("http", "https") or not host or port is None:
            raise UrlRefusedError("must be an absolute http or https URL")
        if port == 0:
            raise UrlRefusedError("port 0 is no port of a host")
        if parsed.username or parsed.password:
            raise UrlRefusedError("must not carry credentials")
        host = host.strip("[]").lower()
        address = address_of(host)
        if address is None and not _is_name(host):
            raise UrlRefusedError(f"no host name: each part between dots has 1 to {HOST_LABEL_CHARS_MAX} characters")
        publishes = bool(published_broker(unquote(parsed.path)))
        query = parsed.query_string
        target = parsed.path if query is None else f"{parsed.path}?{query}"
        trusted = publishes and self._is_own_url(scheme, host, port)
        found = Endpoint(str(parsed), scheme, host, port, address, parsed.authority, target, publishes, trusted)
        if trusted:
            return found
        if any(host == one.host and self._is_refused(one, found) for one in self.own):
            raise UrlRefusedError(_OWN_API)
        if scheme not in self.schemes:
            raise UrlRefusedError(f"the scheme {scheme} is not allowed by this server")
        if self.ports and not any(first <= port <= last for first, last in self.ports):
            raise UrlRefusedError(f"port {port} is not allowed by this server")
        if address is not None and (problem := self.problem(found, address)):
            raise UrlRefusedError(problem)
        return found

    def problem(self, destination: Endpoint, address: Address) -> str:
        """Why events for a destination may not go to an address that it leads to; empty when they may."""
        if destination.trusted:
            return ""
        for listener in self.own:
            if self._is_refused(listener, destination) and any(map(listener.is_at, _meanings(address))):
                return _OWN_API
        return self.address_problem(address)

    def address_problem(self, address: Address) -> str:
        """Why events may not go to an address; empty when they may."""
        for one in _meanings(address):
            problem = self._problem(one)
            if problem:
                carried = "" if one == address else f" (as {one})"
                return f"address {address}{carried} {problem}"
        return ""

    def _problem(self, address: Address) -> str:
        if any(address in network for network in self.deny):
            return "is denied by this server"
        if any(address in network for network in self.allow):
            return ""
        if address in _METADATA:
            return "belongs to a cloud's metadata service"
        if address.is_link_local:
            return "is link-local"
        if address.is_multicast:
            return "is multicast"
        if address.is_unspecified or any(address in network for network in _NEVER):
            return "is no address of a host"
        if self.reach == "public" and not _is_global(address):
            return "is not public"
        return ""

    def _is_own_url(self, scheme: str, host: str, port: int) -> bool:
        if not self.own_url:
            return False
        own = urlsplit(self.own_url)
        return (scheme, host, port) == (own.scheme, own.hostname, own.port or _PORTS[own.scheme])

    def _is_refused(self, listener: Listener, destination: Endpoint) -> bool:
        return destination.port == listener.port and not (listener.takes_events and destination.publishes)


def _is_global(address: Address) -> bool:
    of = [network.prefixlen for network in _GLOBAL if address in network]
    against = [network.prefixlen for network in _NOT_GLOBAL if address in network]
    return max(of, default=-1) > max(against, default=-1)


def address_of(host: str) -> Address | None:
    """A host as an address, without brackets; None when it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_name(host: str) -> bool:
    """Whether a resolver can resolve it: none of its labels is empty or too long; a dot may end it."""
    return all(0 < len(label) <= HOST_LABEL_CHARS_MAX for label in host.removesuffix(".").split("."))


def _meanings(address: Address) -> tuple[Address, ...]:
    """An address and the IPv4 address that it carries, if any: mapped, compatible, NAT64, 6to4, Teredo."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    carried = [found for found in (address.sixtofour, *(address.teredo or ())) if found is not None]
    if any(address in network for network in _V4_AT_END) and address != _LOOPBACK6 and not address.is_unspecified:
        carried.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return (address, *carried)


def ports(text: str) -> tuple[tuple[int, int], ...]:
    """Ranges from a comma-separated text such as `80, 443, 8000-8999`; ValueError for anything else."""
    ranges = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        first, dash, last = item.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 < low <= high < 65_536:
            raise ValueError(f"{item!r} is no port and no range of ports")
        ranges.append((low, high))
    return tuple(ranges)
