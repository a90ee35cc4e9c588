"""Dead letters over HTTP, without a server: what a selection means, what it costs, and which requests are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from headgate.control.http import ERROR_HANDLERS
from headgate.dispatch.letters import LetterStore, State
from headgate.dispatch.letters_api import LettersApi
from tests.dispatch.test_deadletters import letter

BASE = "/apis/headgate.dev/v1/namespaces/default/deadletters"


class Api:
    """The handlers over a store of a temporary directory."""

    def __init__(self, path: Path) -> None:
        self.store = LetterStore(path)
        self.app = Starlette(routes=list(LettersApi(path).routes()), exception_handlers=ERROR_HANDLERS)

    def ask(self, method: str, path: str, body: bytes = b"", *, query: bytes = b"") -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
        asyncio.run(self.app(scope, receive, send))
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))

    def post(self, what: str, **body: object) -> Any:
        status, answer = self.ask("POST", f"{BASE}/{what}", json.dumps(body).encode())
        assert status == 200, answer
        return answer

    @property
    def states(self) -> list[State]:
        return [one.state for one in self.store.page("TRUE", (), after=0, limit=100)]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    api = Api(tmp_path / "deadletters.db")
    yield api
    api.store.close()


@pytest.mark.parametrize("what", ["redrive", "discard"])
def test_without_ids_or_a_state_only_letters_that_are_kept_are_meant(api: Api, what: str) -> None:
    api.store.apply([letter(n, state=State.KEPT if n % 2 else State.SENDING) for n in range(4)], [], [])
    assert api.post(what) == {"count": 2}
    assert api.states.count(State.SENDING) == 2
    assert api.post(what, ids=[1]) == {"count": 1}
    assert api.post(what, state="sending") == {"count": 1}
    assert State.SENDING not in api.states
