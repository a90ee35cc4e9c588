#!/usr/bin/env bash
# A caller of gRPC for Python (asyncio) loses the status with which a server refuses a call.
#
# A server may refuse a stream by its metadata, before it reads a message. If that answer has reached the library when
# the caller writes its first message, but not yet the caller's event loop, the failed write puts a status of its own in
# place of the server's: INTERNAL, "Internal error from Core", without the server's metadata. A caller that decides by
# the status whether to try again, to sign in or to ask elsewhere decides wrong, about once in a thousand calls.
# Known as issue 36066 of grpc/grpc, open in November 2026. What helps on the server: read one message, then refuse.
#
# Here the event loop stands still for a moment between the metadata and the message.
#
# Seen: `read` says UNAUTHENTICATED where the loop had time to see the end of the call, INTERNAL where it had not.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check grpcio==1.85.1
cat >call.py <<'PY'
import asyncio
import contextlib
import threading
import time

import grpc
from grpc import aio


class Refusing(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(self.answer)

    async def answer(self, _, context):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")


async def serve(port, started):
    server = aio.server(handlers=[Refusing()])
    port.append(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    started.set()
    await server.wait_for_termination()


async def status(channel, wait):
    call = channel.stream_stream("/any/method")()
    await call.wait_for_connection()
    await wait()
    with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(b"hello")
    try:
        await call.read()
    except aio.AioRpcError as error:
        return error.code().name, error.details()


async def stand_still():
    time.sleep(0.5)


async def main(port):
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        seen = [await status(channel, lambda: asyncio.sleep(0.5)), await status(channel, stand_still)]
        print(f"grpcio {grpc.__version__}: {seen}")
        assert seen == [("UNAUTHENTICATED", "no token"), ("INTERNAL", "Internal error from Core")]


port, started = [], threading.Event()
threading.Thread(target=lambda: asyncio.run(serve(port, started)), daemon=True).start()
started.wait()
asyncio.run(main(port[0]))
PY
venv/bin/python call.py
