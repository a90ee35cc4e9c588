"""A subscriber with Flask: it verifies who sends, and books each payment once.

WEBHOOK_SECRET=whsec_... python -m examples.python.flask_app --port 9000
"""

from __future__ import annotations

import argparse
import os
import sqlite3

from flask import Flask, request
from standardwebhooks import Webhook, WebhookVerificationError

from examples.python.bookings import Bookings, NotAPaymentError, payment_of

BODY_BYTES_MAX = 2 << 20
"""An event has at most 1 MiB; its JSON may be longer than that."""


def make_app(secret: str, bookings: Bookings) -> Flask:
    """The application.

    Args:
        secret: What the trigger signs by, `whsec_...`.
        bookings: Where payments go.
    """
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = BODY_BYTES_MAX
    webhook = Webhook(secret)

    @app.post("/")
    def receive() -> tuple[str, int] | tuple[str, int, dict[str, str]]:
        body = request.get_data()
        try:
            webhook.verify(body, dict(request.headers))
        except WebhookVerificationError:
            return "the signature is wrong", 401  # not tried again
        except ValueError:
            return "no JSON", 400
        try:
            payment = payment_of(request.headers, body)
        except NotAPaymentError as error:
            return str(error), 400  # not tried again: a dead letter
        try:
            is_new = bookings.book(payment)
        except sqlite3.OperationalError as error:
            return f"not now: {error}", 503, {"Retry-After": "1"}  # tried again
        print(f"{payment.id}: {payment.total}" if is_new else f"{payment.id} again", flush=True)
        return "", 204

    return app


def main() -> None:
    """Serves until Ctrl-C. In production a WSGI server does that, such as gunicorn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9000)
    bookings = Bookings(os.environ.get("BOOKINGS", "bookings.db"))
    make_app(os.environ["WEBHOOK_SECRET"], bookings).run("127.0.0.1", parser.parse_args().port)


if __name__ == "__main__":
    main()
