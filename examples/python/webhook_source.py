"""A source: webhooks of GitHub, and of whoever follows Standard Webhooks, become events of a broker.

GITHUB_SECRET=... WEBHOOK_SECRET=whsec_... python -m examples.python.webhook_source --port 9000

POST /github and POST /webhooks. A webhook is published before it is answered with 202, so nothing is lost between its
sender and the broker. One that comes again is answered with 200 and not published again.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from cloudevents.core.bindings.http import to_structured_event
from cloudevents.core.exceptions import BaseCloudEventException
from cloudevents.core.v1.event import CloudEvent
from standardwebhooks import Webhook, WebhookVerificationError

BODY_BYTES_MAX = 1_000_000
"""A little less than what an event may have."""
BODY_S_MAX = 10.0
PUBLISH_S_MAX = 20.0
REMEMBERED_MAX = 10_000
"""Webhooks that are known again when they come again. Their events have the same id, so subscribers know them, too."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class Refused(Exception):
    """A webhook is not taken.

    Attributes:
        status: What it is answered with.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def github_event(headers: Mapping[str, str], body: bytes, secret: bytes) -> CloudEvent:
    """The event of a GitHub webhook.

    GitHub signs the body alone. So the event's id is the body's digest, and not `X-GitHub-Delivery`: whoever has seen
    a webhook could send it again under another one.

    Raises:
        Refused: The signature is wrong, or it is none of GitHub's.
    """
    wanted = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    shown = headers.get("X-Hub-Signature-256", "")
    if not hmac.compare_digest(wanted.encode(), shown.encode("utf-8", "replace")):
        raise Refused(401, "the signature is wrong")
    payload = _object(body)
    words = [headers.get("X-GitHub-Event", ""), *([payload["action"]] if "action" in payload else [])]
    repository = payload.get("repository")
    source = repository.get("html_url") if isinstance(repository, dict) else None
    return _event(hashlib.sha256(body).hexdigest(), source or "https://github.com", ["com", "github", *words], payload)


def standard_event(headers: Mapping[str, str], body: bytes, webhook: Webhook) -> CloudEvent:
    """The event of a webhook by Standard Webhooks, whose signature covers its id and its time.

    Raises:
        Refused: The signature is wrong or older than five minutes, or the body is none of a webhook.
    """
    try:
        webhook.verify(body, dict(headers))
    except WebhookVerificationError as error:
        raise Refused(401, str(error)) from error
    except ValueError as error:
        raise Refused(400, "no JSON") from error
    payload = _object(body)
    lower = {name.lower(): value for name, value in headers.items()}
    return _event(lower["webhook-id"], "/webhooks", [payload.get("type")], payload.get("data"))


def _object(body: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "no JSON") from error
    if not isinstance(payload, dict):
        raise Refused(400, "no JSON object")
    return payload


def _event(event_id: str, source: object, words: list[Any], data: object) -> CloudEvent:
    if not all(isinstance(word, str) and _NAME.fullmatch(word) for word in words):
        raise Refused(400, "no type of event")
    attributes = {"specversion": "1.0", "id": event_id, "source": source, "type": ".".join(words)}
    try:
        return CloudEvent({**attributes, "datacontenttype": "application/json"}, data)
    except BaseCloudEventException as error:
        raise Refused(400, str(error)) from error


class WebhookSource:
    """The receiver.

    Args:
        broker: URL of the broker.
        github_secret: What GitHub signs by.
        webhook_secret: What the others sign by, `whsec_...`.
    """

    def __init__(self, broker: str, github_secret: str, webhook_secret: str) -> None:
        self._broker = broker
        self._github_secret = github_secret.encode()
        self._webhook = Webhook(webhook_secret)
        self._known: OrderedDict[tuple[str, str], bool] = OrderedDict()  # whether it is published, or about to be
        self._session: ClientSession | None = None

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes([web.post("/github", self._github), web.post("/webhooks", self._standard)])
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        async with ClientSession(timeout=ClientTimeout(PUBLISH_S_MAX)) as self._session:
            yield

    async def _github(self, request: web.Request) -> web.Response:
        return await self._take(request, lambda body: github_event(request.headers, body, self._github_secret))

    async def _standard(self, request: web.Request) -> web.Response:
        return await self._take(request, lambda body: standard_event(request.headers, body, self._webhook))

    async def _take(self, request: web.Request, read: Callable[[bytes], CloudEvent]) -> web.Response:
        try:
            async with asyncio.timeout(BODY_S_MAX):
                event = read(await request.read())  # beyond client_max_size: 413
        except TimeoutError:
            return web.Response(status=408)
        except Refused as error:
            return web.Response(status=error.status, text=str(error))
        key = event.get_source(), event.get_id()
        if key in self._known:
            # Perhaps the sender did not hear the first answer: only 2xx keeps it from sending again and again.
            return web.Response(status=200) if self._known[key] else _later("it is being published")
        self._known[key] = False
        try:
            answer = await self._publish(event)
            self._known[key] = answer.status == 202
        finally:
            if not self._known[key]:
                del self._known[key]
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return answer

    async def _publish(self, event: CloudEvent) -> web.Response:
        message = to_structured_event(event)
        assert self._session is not None
        try:
            async with self._session.post(self._broker, data=message.body, headers=message.headers) as answer:
                if answer.status == 202:
                    return web.Response(status=202)
                if answer.status in (429, 503):
                    return _later("the broker is busy")
                return web.Response(status=422, text=f"the broker refuses it: {answer.status}")
        except (ClientError, TimeoutError) as error:
            return _later(f"the broker does not answer: {error!r}")


def _later(why: str) -> web.Response:
    return web.Response(status=503, text=why, headers={"Retry-After": "1"})


def main() -> None:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="http://127.0.0.1:8080/default/default")
    parser.add_argument("--port", type=int, default=9000)
    given = parser.parse_args()
    source = WebhookSource(given.broker, os.environ["GITHUB_SECRET"], os.environ["WEBHOOK_SECRET"])
    web.run_app(source.app(), host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
