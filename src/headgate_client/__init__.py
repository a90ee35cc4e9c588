"""The Python client: `AsyncClient` with asyncio, `Client` without (docs/reference/client.md).

from headgate_client import Client, new_event

with Client("127.0.0.1:8081") as client:
    client.publish("orders", new_event("order.paid", "/shop", {"total": 250}))
    with client.subscribe("big-orders") as consumer:
        for received in consumer:
            print(received.json())
            consumer.ack(received)
"""

from headgate_api.errors import (
    ConflictError,
    HeadgateError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
)
from headgate_api.event.model import DataKind, Event
from headgate_client.aio import AsyncClient
from headgate_client.consumer import AsyncConsumer
from headgate_client.errors import (
    ClosedError,
    DisconnectedError,
    HandshakeError,
    ProducerNameTakenError,
    RefusedError,
    SequenceUnknownError,
    ServerError,
)
from headgate_client.producer import AsyncProducer
from headgate_client.reader import AsyncReader, ReadOptions
from headgate_client.sync import Client, Consumer, Producer, Reader
from headgate_client.values import (
    Analysis,
    Filter,
    Place,
    Progress,
    ReadEvent,
    Received,
    SeekProgress,
    SeekResult,
    Stats,
    SupportsCel,
    json_of,
    new_event,
)

__all__ = [
    "Analysis",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "Client",
    "ClosedError",
    "ConflictError",
    "Consumer",
    "DataKind",
    "DisconnectedError",
    "Event",
    "Filter",
    "HandshakeError",
    "HeadgateError",
    "InvalidInputError",
    "NotFoundError",
    "OverloadedError",
    "Place",
    "Producer",
    "ProducerNameTakenError",
    "Progress",
    "ReadEvent",
    "ReadOptions",
    "Reader",
    "Received",
    "RefusedError",
    "SeekProgress",
    "SeekResult",
    "SequenceUnknownError",
    "ServerError",
    "Stats",
    "SupportsCel",
    "UnauthenticatedError",
    "UnavailableError",
    "json_of",
    "new_event",
]
