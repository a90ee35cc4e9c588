"""Publish an order with the CloudEvents SDK.

python -m examples.python.publish http://127.0.0.1:8080/default/default [binary]
"""

import sys

import requests
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from requests.adapters import HTTPAdapter
from urllib3.util import Retry


def main(broker: str, mode: str = "structured") -> None:
    """Publishes one order; 202 means that it is on disk."""
    order = CloudEvent(
        {
            "specversion": "1.0",
            "id": "python-1",  # stays the same when the order is sent again, so that subscribers know it
            "source": "/shop/python",
            "type": "order.paid",
            "subject": "Grün & Co",
            "datacontenttype": "application/json",
        },
        {"total": 250},
    )
    message = to_binary_event(order) if mode == "binary" else to_structured_event(order)
    with requests.Session() as session:
        # Again after 429, 503 and broken connections; Retry-After says when.
        again = Retry(5, backoff_factor=0.2, status_forcelist=[429, 503], allowed_methods=["POST"])
        session.mount(broker, HTTPAdapter(max_retries=again))
        answer = session.post(broker, data=message.body, headers=message.headers, timeout=30)
    answer.raise_for_status()
    print(f"published {order.get_id()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
