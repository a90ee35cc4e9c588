"""What authentication costs a delivery: processor time of a POST with a token or a signature beside one without.

Pairs in one run, one after the other, so that a busy machine is as busy for both. Run: `python -m benchmarks.signing`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import statistics
import time
from itertools import count
from typing import cast

import uvloop

from benchmarks.dispatch import BROKER, PARALLEL, cpu_s, event, subscriber
from headgate.delivery.authentication import Access, RequestAuthentication, message_id
from headgate.delivery.events import SharedEvent
from headgate.delivery.post import HttpTransport, Transport
from headgate.delivery.retry import SYSTEM, Outcome
from headgate.objects.store.secret_store import SecretTable
from headgate_api.objects.kinds import AuthSpec, Secret, SecretAuth, SecretReference
from headgate_api.objects.metadata import Metadata

_TAKEN = Outcome(202)


class OneSecret:
    """Any name is this Secret's."""

    def __init__(self) -> None:
        key = f"whsec_{base64.b64encode(os.urandom(32)).decode()}".encode()
        data = {name: base64.b64encode(value).decode() for name, value in (("token", b"t" * 800), ("secret", key))}
        self._secret = Secret(api_version="v1", kind="Secret", metadata=Metadata(name="s"), data=data)

    def get(self, namespace: str, name: str) -> Secret | None:
        return self._secret


async def measured(url: str, posts: int, auth: AuthSpec | None) -> tuple[float, float]:
    """Seconds and processor seconds of so many POSTs, PARALLEL at a time."""
    access = Access.of("default", auth, "")
    async with HttpTransport() as transport:
        authentication = RequestAuthentication(transport, cast(SecretTable, OneSecret()), SYSTEM)
        numbers = count()

        async def worker() -> None:
            while (number := next(numbers)) < posts:
                one = event(number)
                headers, body = SharedEvent(BROKER, one, 0).wire
                if access is None:
                    outcome = await transport.post(url, headers, body, 30.0)
                else:
                    outcome = await authentication.post(access, message_id(one), url, headers, body, 30.0)
                assert outcome.status == 202, outcome

        began, used = time.monotonic(), cpu_s()
        await asyncio.gather(*(worker() for _ in range(PARALLEL)))
        return time.monotonic() - began, cpu_s() - used


class Nowhere:
    """Takes everything at once."""

    async def post(self, *_: object) -> Outcome:
        return _TAKEN


async def alone_us(auth: AuthSpec, times: int = 50_000) -> float:
    """Microseconds of what is done for an attempt before it is sent."""
    access, one = Access("default", auth), event(1)
    authentication = RequestAuthentication(cast(Transport, Nowhere()), OneSecret(), SYSTEM)
    headers, body = SharedEvent(BROKER, one, 0).wire
    await authentication.post(access, message_id(one), "http://x/", headers, body, 30.0)
    began = time.process_time()
    for _ in range(times):
        await authentication.post(access, message_id(one), "http://x/", headers, body, 30.0)
    return (time.process_time() - began) / times * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posts", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    part = SecretAuth(secret_ref=SecretReference(name="s"))
    ways = {"bearer": AuthSpec(bearer=part), "signature": AuthSpec(signature=part)}
    with subscriber() as (url, pipe):
        uvloop.run(measured(url, given.posts // 4, None))
        for name, auth in ways.items():
            ratios, plain_us, own_us = [], [], []
            for _ in range(given.pairs):
                for chosen, into in ((None, plain_us), (auth, own_us)):
                    _, used_s = uvloop.run(measured(url, given.posts, chosen))
                    into.append(used_s / given.posts * 1e6)
                    pipe.send("arrivals")
                    pipe.recv()
                ratios.append(own_us[-1] / plain_us[-1])
            print(
                f"{name}: {uvloop.run(alone_us(auth)):.1f} us before the request is sent;"
                f" {statistics.median(own_us):.1f} us of processor time a POST,"
                f" without {statistics.median(plain_us):.1f} us, ratio {statistics.median(ratios):.3f}"
                f" ({min(ratios):.3f} to {max(ratios):.3f})"
            )


if __name__ == "__main__":
    main()
