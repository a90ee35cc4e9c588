"""A delivery at a path that takes no events, whatever address it came by."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest

from headgate.delivery.events import encoded
from headgate.server.refusals import NoDeliveries
from tests.delivery.harness import event
from tests.ingress.support import call, fallback


@pytest.mark.parametrize("form", ["binary", "json", "batch"])
@pytest.mark.parametrize("reply", [True, False])
def test_no_delivery_is_a_request_to_the_api(form: Literal["binary", "json", "batch"], reply: bool) -> None:
    headers, _ = encoded(event(1), "0-1-a", form, reply=reply)
    answer, _ = asyncio.run(call(NoDeliveries(fallback), path="/apis/x", headers=headers))
    assert (answer.status, json.loads(answer.body)["code"]) == (403, "delivery-refused")
    answer, _ = asyncio.run(call(NoDeliveries(fallback), path="/apis/x", headers=[("content-type", "text/plain")]))
    assert answer.status == 299, "who is no broker may ask"
