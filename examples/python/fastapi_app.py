"""A subscriber with FastAPI: it verifies who sends, and books each payment once.

WEBHOOK_SECRET=whsec_... python -m uvicorn --factory examples.python.fastapi_app:make_app --port 9000
"""

from __future__ import annotations

import os
import sqlite3

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from standardwebhooks import Webhook, WebhookVerificationError

from examples.python.bookings import Bookings, NotAPaymentError, payment_of

BODY_BYTES_MAX = 2 << 20
"""An event has at most 1 MiB; its JSON may be longer than that."""


def make_app() -> FastAPI:
    """The application; it reads the environment."""
    app = FastAPI()
    webhook = Webhook(os.environ["WEBHOOK_SECRET"])
    bookings = Bookings(os.environ.get("BOOKINGS", "bookings.db"))

    @app.post("/", status_code=204)
    async def receive(request: Request) -> None:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                raise HTTPException(413, "too large")
        try:
            webhook.verify(bytes(body), dict(request.headers))
        except WebhookVerificationError as error:
            raise HTTPException(401, "the signature is wrong") from error  # not tried again
        except ValueError as error:
            raise HTTPException(400, "no JSON") from error
        try:
            payment = payment_of(request.headers, bytes(body))
        except NotAPaymentError as error:
            raise HTTPException(400, str(error)) from error  # not tried again: a dead letter
        try:
            is_new = await run_in_threadpool(bookings.book, payment)
        except sqlite3.OperationalError as error:
            raise HTTPException(503, f"not now: {error}", {"Retry-After": "1"}) from error  # tried again
        print(f"{payment.id}: {payment.total}" if is_new else f"{payment.id} again", flush=True)

    return app
