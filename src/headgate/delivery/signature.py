"""Signatures by Standard Webhooks 1.0: HMAC-SHA256 over id, time and body, one for each secret."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from hashlib import blake2b

from headgate.event.model import Event

_ID_BYTES = 18


def message_id(event: Event, more: str = "") -> str:
    """The id of what is sent: the same for every attempt, and without a dot, which separates what is signed.

    Args:
        event: Its source and id name it.
        more: What tells another sending of the same event apart, such as a replay.
    """
    name = "\0".join((event.source, event.id, more)).encode()
    return "msg_" + base64.urlsafe_b64encode(blake2b(name, digest_size=_ID_BYTES).digest()).decode()


def batch_id(body: bytes) -> str:
    """The id of several events that are sent at once: another one when they are not the same events."""
    return "msg_" + base64.urlsafe_b64encode(blake2b(body, digest_size=_ID_BYTES).digest()).decode()


def signed(keys: Sequence[bytes], id_: str, time_s: int, body: bytes) -> list[tuple[str, str]]:
    """The headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.

    Args:
        keys: One for each signature.
        id_: Of the message.
        time_s: Of the attempt, seconds since 1970.
        body: As it is sent.
    """
    text = b"%b.%d.%b" % (id_.encode(), time_s, body)
    made = (base64.b64encode(hmac.digest(key, text, "sha256")).decode() for key in keys)
    signatures = " ".join(f"v1,{one}" for one in made)
    return [("webhook-id", id_), ("webhook-timestamp", str(time_s)), ("webhook-signature", signatures)]
