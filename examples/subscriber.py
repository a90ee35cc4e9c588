"""A subscriber that prints what it gets: one line a delivery, its path, the event's type and id, and the data.

Run it with `python -m examples.subscriber`. It answers 202; with `--status 503` it answers that. With `--header NAME`
it prints that header, too. `--host 0.0.0.0` lets other machines and containers reach it.
"""

from __future__ import annotations

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Subscriber(BaseHTTPRequestHandler):
    """Takes events in binary mode."""

    protocol_version = "HTTP/1.1"
    status = 202
    header = ""

    def do_POST(self) -> None:
        """One delivery."""
        data = self.rfile.read(int(self.headers["content-length"] or 0))
        more = [f"{self.header}: {self.headers[self.header]}"] if self.header else []
        print(self.path, self.headers["ce-type"], self.headers["ce-id"], data.decode(), *more, flush=True)
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing beside the events."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=9000)
    options.add_argument("--status", type=int, default=202)
    options.add_argument("--header", default="")
    return options


def main() -> None:
    """Serves until Ctrl-C."""
    given = parser().parse_args()
    Subscriber.status, Subscriber.header = given.status, given.header
    server = ThreadingHTTPServer((given.host, given.port), Subscriber)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
