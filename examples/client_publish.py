"""Publish orders to a broker, so that each is stored once, whatever happens to the connection or the server.

python -m examples.client_publish 127.0.0.1:8081 default/default
"""

import sys

from headgate_client.sync import Client
from headgate_client.values import new_event


def main(server: str, broker: str, count: int = 100) -> int:
    """Publishes orders; returns the sequence behind the last one."""
    with Client(server) as client, client.producer(broker, name="shop-1") as producer:
        for number in range(producer.next_sequence, count):
            order = new_event("order.paid", "/shop", {"number": number, "total": number * 10}, id=f"order-{number}")
            producer.send(order)
        producer.flush()  # everything is on disk
        print(f"published up to order {producer.next_sequence - 1}")
        return producer.next_sequence


if __name__ == "__main__":
    main(*sys.argv[1:])
