"""Connections to subscribers' addresses: opened when there is none, kept for a while for the next request."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headgate.control.credentials import ClientTls, CredentialsError
from headgate.delivery.http_connection import AnswerSink, HttpConnection, RequestFailedError
from headgate.limits import ROUTES_KEPT_MAX

IDLE_CONNECTION_S: Final = 4.0
"""Shorter than the 5 s after which Node.js and uvicorn close one: a POST into a connection that is being closed is sent
a second time, and nobody knows whether the first one was heard."""
_PROBED_AFTER_S: Final = 0.5
"""A connection that was idle for longer is looked at before it is used: no server closes one earlier."""
_SWEEP_S: Final = 1.0
_UNKNOWN_CA: Final = frozenset(
    {
        "certificate signature failure",
        "self-signed certificate",
        "self-signed certificate in certificate chain",
        "unable to get local issuer certificate",
        "unable to verify the first certificate",
    }
)
"""OpenSSL's words for a certificate whose CA it does not know."""


class ConnectionPool:
    """Connections to one address.

    Args:
        pools: Whose it is.
        host: An address.
        port: Its port.
        tls: None for plain HTTP.
        server_name: What the certificate must bear.
    """

    __slots__ = ("_host", "_idle", "_pools", "_port", "_server_name", "_tls")

    def __init__(
        self, pools: ConnectionPools, host: str, port: int, tls: ssl.SSLContext | None, server_name: str
    ) -> None:
        self._pools = pools
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name
        self._idle: list[HttpConnection] = []

    async def send(self, head: bytes, body: bytes, answer: AnswerSink, timeout_s: float, connect_s: float) -> None:
        """Sends a request by a connection that is there, or a new one; returns as `HttpConnection.send` is done.

        A kept connection that ends before a byte of an answer was most likely closed by the peer before it had read
        the request: the same request goes at once into a new one.

        Args:
            head: Request line and header lines.
            body: What follows.
            answer: Takes what comes.
            timeout_s: For all of it.
            connect_s: For a new connection, of that.

        Raises:
            RequestFailedError: There is no whole answer.
        """
        connection = self._take()
        while True:  # twice at most: a new connection is not kept
            if connection is None:
                began_s = self._pools.loop.time()
                connection = await self._connect(min(connect_s, timeout_s))
                timeout_s = max(0.0, timeout_s - (self._pools.loop.time() - began_s))
            done = connection.send(head, body, answer, timeout_s)
            try:
                await done
                return
            except RequestFailedError as error:
                if error.left_s <= 0:
                    raise
                connection, timeout_s = None, error.left_s
            finally:
                if done.cancelled() and connection is not None:
                    connection.break_off(done)

    def close_idle(self, until_s: float) -> bool:
        """Closes connections that are idle since a loop time or longer; returns whether some are left."""
        kept = []
        for connection in self._idle:
            if connection.idle_since_s <= until_s:
                connection.close()
            else:
                kept.append(connection)
        self._idle = kept
        return bool(kept)

    def _take(self) -> HttpConnection | None:
        """The connection that was used last: those that are not needed grow old."""
        while self._idle:
            connection = self._idle.pop()
            idle_s = self._pools.loop.time() - connection.idle_since_s
            if idle_s < IDLE_CONNECTION_S and connection.is_usable(probed=idle_s > _PROBED_AFTER_S):
                return connection
            connection.close()
        return None

    async def _connect(self, timeout_s: float) -> HttpConnection:
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await self._pools.loop.create_connection(
                    self._made, self._host, self._port, ssl=self._tls, server_hostname=self._server_name or None
                )
        except TimeoutError:
            raise RequestFailedError("timeout", f"no connection within {timeout_s:.3g} s", unsent=True) from None
        except OSError as error:  # and what TLS refuses
            raise RequestFailedError(*_told(error), unsent=True) from None
        return connection

    def _made(self) -> HttpConnection:
        return HttpConnection(self._release, self._pools.opened)

    def _release(self, connection: HttpConnection) -> None:
        """Keeps as many as were in use, ATTEMPTS_MAX of all pools at most: to close and open them is dearer."""
        self._idle.append(connection)
        self._pools.has_idle(self)


class ConnectionPools:
    """The pools of all addresses. Lives on one event loop.

    Attributes:
        loop: That one.
        opened: Every connection.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.opened: set[HttpConnection] = set()
        self._pools: OrderedDict[tuple[str, int, str, ssl.SSLContext | None], ConnectionPool] = OrderedDict()
        self._with_idle: set[ConnectionPool] = set()
        self._timer: asyncio.TimerHandle | None = None

    def pool(self, host: str, port: int, tls: ssl.SSLContext | None = None, server_name: str = "") -> ConnectionPool:
        """The pool of an address; one that was forgotten meanwhile works on for who has it."""
        key = (host, port, server_name, tls)
        found = self._pools.get(key)
        if found is None:
            found = self._pools[key] = ConnectionPool(self, host, port, tls, server_name)
            if len(self._pools) > ROUTES_KEPT_MAX:
                self._pools.popitem(last=False)
        else:
            self._pools.move_to_end(key)
        return found

    def has_idle(self, pool: ConnectionPool) -> None:
        """A pool has an idle connection, which has to be closed at some time."""
        self._with_idle.add(pool)
        if self._timer is None:
            self._timer = self.loop.call_later(_SWEEP_S, self._sweep)

    def close(self) -> None:
        """Closes every connection; a request that is under way fails."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.opened):
            connection.close()

    def _sweep(self) -> None:
        until_s = self.loop.time() - IDLE_CONNECTION_S
        self._with_idle = {pool for pool in self._with_idle if pool.close_idle(until_s)}
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep) if self._with_idle else None


def _told(error: OSError) -> tuple[str, str]:
    """Why there is no connection: reason and detail of an `Outcome`. OpenSSL's words name lines of its source."""
    words = f"no connection: {error.strerror or error}"
    match error:
        case ConnectionRefusedError():
            return "refused", words
        case ssl.SSLCertVerificationError(verify_message=why):
            hint = "; if you trust its CA, give it as CACerts" if why in _UNKNOWN_CA else ""
            return "certificate", f"no connection: {why}{hint}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE"):
            return "tls", "no connection: the host does not answer in TLS; is the URL one of http?"
        case ssl.SSLError():
            return "tls", words
        case _:
            return "connection", words


def tls_context(tls: ClientTls | None) -> ssl.SSLContext:
    """What TLS trusts and shows: the system's CAs, and what is given. Blocks for some milliseconds.

    Raises:
        CredentialsError: TLS cannot use what it is to trust or to show.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a CA that is no root may be trusted, too
    context.set_alpn_protocols(["http/1.1"])
    if tls is None:
        return context
    try:
        if tls.ca_certs:
            context.load_verify_locations(cadata=tls.ca_certs)
        if tls.identity:
            with _file_of(tls.identity) as path:
                context.load_cert_chain(path)
    except (OSError, ValueError):  # what it says may quote a key
        what = "certificate and key" if tls.identity else "CA certificates"
        raise CredentialsError("CertificateUnusable", f"TLS cannot use the {what}") from None
    return context


@contextmanager
def _file_of(identity: str) -> Iterator[str]:
    """A path with certificate and key, which OpenSSL takes from files alone: in memory where the system can."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("identity")
        try:
            os.write(descriptor, identity.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # for its owner alone
        file.write(identity.encode())
        file.flush()
        yield file.name
