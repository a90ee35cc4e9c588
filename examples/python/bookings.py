"""Payments out of events, each booked once: what makes a subscriber safe against events that come twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.exceptions import BaseCloudEventException


class NotAPaymentError(Exception):
    """A request holds no event, or one that is no payment."""


@dataclass(frozen=True)
class Payment:
    """A payment, and what identifies the event that told of it."""

    source: str
    id: str
    total: int


def payment_of(headers: Mapping[str, str], body: bytes) -> Payment:
    """The payment in a delivery.

    Raises:
        NotAPaymentError: There is none.
    """
    try:
        event = from_http_event(HTTPMessage(dict(headers), body))
        return Payment(event.get_source(), event.get_id(), int(event.get_data()["total"]))
    except (BaseCloudEventException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotAPaymentError(f"no payment: {error!r}") from error


class Bookings:
    """A table in SQLite whose key is what identifies an event: its source and its id.

    The work and the note that it was done are one transaction. Two tables, or a table and a call to somebody else,
    could be torn apart by a crash between them.

    Args:
        path: The file of the database; made when absent.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bookings (source, id, total, PRIMARY KEY (source, id))")

    def book(self, payment: Payment) -> bool:
        """Books a payment; False when that event was booked before.

        Raises:
            sqlite3.OperationalError: The database is locked or its disk is full: later it may work.
        """
        row = (payment.source, payment.id, payment.total)
        with closing(sqlite3.connect(self._path, timeout=2)) as connection, connection:
            return connection.execute("INSERT INTO bookings VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row).rowcount == 1
