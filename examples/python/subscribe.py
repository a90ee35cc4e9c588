"""Subscribe with the CloudEvents SDK: answer each order with an invoice, which becomes an event of the broker.

python -m examples.python.subscribe --port 9000
"""

from __future__ import annotations

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_structured_event
from cloudevents.core.exceptions import BaseCloudEventException
from cloudevents.core.v1.event import CloudEvent


class Invoices(BaseHTTPRequestHandler):
    """Makes invoices."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Takes one order."""
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            order = from_http_event(HTTPMessage(dict(self.headers), body))
            total = order.get_data()["total"]
        except (BaseCloudEventException, AttributeError, KeyError, TypeError, ValueError) as error:
            self.answer(400, {}, f"no order: {error!r}".encode())  # not tried again: a dead letter
            return
        print(f"{order.get_id()} of {order.get_subject()}: {total}", flush=True)
        invoice = CloudEvent(
            {
                "specversion": "1.0",
                "id": f"invoice-{order.get_id()}",  # the same when the order comes again
                "source": "/invoices/python",
                "type": "invoice.made",
                "subject": order.get_subject(),
                "datacontenttype": "application/json",
            },
            {"amount": total},
        )
        reply = to_structured_event(invoice)
        self.answer(200, reply.headers, reply.body)

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Sends an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing beside the orders."""


def main() -> None:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9000)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Invoices)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
