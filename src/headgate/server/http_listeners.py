"""The HTTP addresses of a front, plain and over TLS, with one bound on the connections of all."""

from __future__ import annotations

import asyncio
import functools
import socket

from starlette.types import ASGIApp

from headgate.ingress.connections import Connections
from headgate.ingress.protocol import BoundedHttpProtocol, TlsAcceptor, http_config
from headgate.server import child, listening
from headgate.server.listening import ListenAddress, addresses_of
from headgate.server.tls import CertificateKeeper, TlsFiles
from headgate.settings import Settings, TlsMode


class HttpListeners:
    """The HTTP addresses of a front: bound when it is made, served from `serve` on. Without TLS no certificate."""

    def __init__(self, settings: Settings) -> None:
        is_tls = settings.mode is not TlsMode.DISABLED
        self.certificate = CertificateKeeper(TlsFiles.of(settings)) if is_tls else None
        self._bound: list[tuple[ListenAddress, list[socket.socket]]] = []
        self._servers: list[child.UvicornServer] = []
        self._serving: list[asyncio.Task[None]] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._proxies = settings.proxies
        try:
            for address in addresses_of(settings):
                if not address.is_grpc:
                    sockets = listening.bind(address.host, address.port, address.option, shared=settings.fronts > 1)
                    self._bound.append((address, sockets))
        except listening.AddressError:
            self.close()
            raise

    def serve(self, app: ASGIApp) -> list[asyncio.Task[None]]:
        """Begins to serve an application; the tasks end when `stop` is called, or one fails."""
        connections = Connections()
        protocol = functools.partial(BoundedHttpProtocol, connections)
        for address, sockets in self._bound:
            server = child.UvicornServer(http_config(app, address.host, address.port, protocol, self._proxies))
            self._servers.append(server)
            # uvicorn has the connections over TLS from the end of their handshakes on.
            self._serving.append(asyncio.create_task(server.serve([] if address.is_tls else sockets)))
            if address.is_tls:
                assert self.certificate is not None
                make_http = functools.partial(
                    protocol, config=server.config, server_state=server.server_state, app_state={}
                )
                acceptor = TlsAcceptor(connections, self.certificate.context, make_http)
                for one in sockets:
                    one.listen(server.config.backlog)
                    one.setblocking(False)
                    self._accepting.append(asyncio.create_task(acceptor.run(one)))
        return [*self._serving, *self._accepting]

    async def started(self) -> None:
        """Waits until every address is served; raises what a server failed with."""
        for server, serving in zip(self._servers, self._serving, strict=True):
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            if serving.done():
                await serving

    def connections(self) -> int:
        return sum(len(server.server_state.connections) for server in self._servers)

    async def watch(self) -> None:
        """Takes up a new certificate when its files change; never ends."""
        if self.certificate is not None:
            await self.certificate.watch()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Ends serving: requests under way may end within FRONT_DRAIN_S_MAX; raises what an address failed with."""
        for accepting in self._accepting:
            accepting.cancel()
        accepted = await asyncio.gather(*self._accepting, return_exceptions=True)
        for address, sockets in self._bound:
            if address.is_tls:
                listening.close(sockets)
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._serving)
        for result in accepted:
            if isinstance(result, Exception):
                raise result

    def close(self) -> None:
        for _, sockets in self._bound:
            listening.close(sockets)
