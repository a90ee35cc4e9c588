"""Trials of filters over HTTP, each run in a small process beside the front: a hostile filter costs its process.

POST /apis/headgate.dev/v1/filters/test       the filter on events
POST /apis/headgate.dev/v1/filters/explain    how it is matched
POST /apis/headgate.dev/v1/filters/convert    what it is in CEL
GET  /apis/headgate.dev/v1/filters/dialects   in which languages it can be written
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.objects.api.http import JSON, Handler, read_body
from headgate.objects.api.queries import user_of
from headgate.server.processes.filter_worker import ANSWER_HEAD, REQUEST_HEAD, RUNS
from headgate.shares import FairPlaces
from headgate_api import limits
from headgate_api.errors import InvalidInputError, OverloadedError, UnavailableError
from headgate_api.objects.kinds import OWN_API_VERSION

PREFIX: Final = f"/apis/{OWN_API_VERSION}/filters"
_NUMBERS: Final = {name: number for number, name in enumerate(RUNS)}
_COMMAND: Final = (sys.executable, "-m", "headgate.server.processes.filter_worker")


class FilterRunsOverloadError(OverloadedError):
    """Enough trials of one user are under way."""

    code = "filter-runs"


class FilterRunEndedError(InvalidInputError):
    """A trial of a filter was ended: it took too long, or too much memory."""

    code = "filter-run-ended"
    http_status = 422


class FilterWorkerError(UnavailableError):
    """A process in which filters are tried does not start."""

    code = "filter-worker"


class _Worker:
    """A process that has started and has nothing to do."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests, self._answers = process.stdin, process.stdout
        self.idle: asyncio.TimerHandle | None = None

    async def answer(self) -> tuple[int, bytes]:
        status, size = ANSWER_HEAD.unpack(await self._answers.readexactly(ANSWER_HEAD.size))
        return status, await self._answers.readexactly(size)

    async def ask(self, run: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of an answer; raises EOFError or OSError when the process has ended."""
        self._requests.write(REQUEST_HEAD.pack(_NUMBERS[run], len(body)) + body)
        await self._requests.drain()
        return await self.answer()

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._requests.close()
        await self._process.wait()
        await self._answers.read()  # to its end, where the pipe is closed


@dataclass(slots=True)
class _Turns:
    """The runs of one user: `count` are under way, and the one that runs holds `turn`."""

    count: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class FilterWorkers:
    """The processes of one front; made when they are needed. Lives on one event loop."""

    def __init__(self, command: Sequence[str] = _COMMAND, run_s: float = limits.FILTER_RUN_S_MAX) -> None:
        self._command = command
        self._run_s = run_s
        self._free: list[_Worker] = []
        self._room = asyncio.Semaphore(limits.FILTER_WORKERS_MAX)
        self._users: dict[str, _Turns] = {}
        self._places = FairPlaces("filter-runs", "FILTER_RUNS_MAX", limits.FILTER_RUNS_MAX)
        self._ending: set[asyncio.Task[None]] = set()
        self._warming: asyncio.Task[None] | None = None

    def warm(self) -> None:
        """Start a process where none is there, beside what goes on: the next run need not wait for its start."""
        if not self._free and not self._places and self._warming is None:
            self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        try:
            async with self._room:
                self._keep(await self._started())
        except FilterWorkerError:
            pass  # the next run tries it again, and tells
        finally:
            self._warming = None

    async def run(self, user: str, run: str, body: bytes) -> tuple[int, bytes]:
        turns = self._users.get(user) or _Turns()
        if turns.count >= limits.FILTER_RUNS_OF_USER_MAX:
            raise FilterRunsOverloadError(
                f"{turns.count} trials of filters of the user {user!r} are under way (FILTER_RUNS_OF_USER_MAX)",
                hint="send one after the other",
            )
        with self._places.held("", user):
            self._users[user] = turns
            turns.count += 1
            try:
                async with turns.turn:
                    if not self._free and self._warming is not None:
                        await asyncio.wait([self._warming])  # holding no room, which it may still need
                    async with self._room:
                        return await self._run(run, body)
            finally:
                turns.count -= 1
                if not turns.count:
                    self._users.pop(user, None)

    async def _run(self, run: str, body: bytes) -> tuple[int, bytes]:
        worker = self._free.pop() if self._free else await self._started()
        if worker.idle is not None:
            worker.idle.cancel()
        try:
            async with asyncio.timeout(self._run_s):
                found = await worker.ask(run, body)
        except TimeoutError:
            await worker.end()
            raise FilterRunEndedError(
                f"the trial was ended after {self._run_s:g} s (FILTER_RUN_S_MAX)", hint="try fewer or smaller events"
            ) from None
        except (EOFError, OSError):
            await worker.end()
            raise FilterRunEndedError(
                "the trial was ended: it took too much memory, or failed", hint="try fewer or smaller events"
            ) from None
        except BaseException:  # the request was cancelled: the answer would be the next one's
            self._spare(worker)
            raise
        self._keep(worker)
        return found

    def _keep(self, worker: _Worker) -> None:
        self._free.append(worker)
        worker.idle = asyncio.get_running_loop().call_later(limits.FILTER_WORKER_IDLE_S, self._retire, worker)

    async def _started(self) -> _Worker:
        # Nothing of what the server knows by its environment, such as where its keys are.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE")}
        worker: _Worker | None = None
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, env=environment)
            worker = _Worker(process)
            async with asyncio.timeout(limits.FILTER_WORKER_START_S_MAX):
                await worker.answer()
        except BaseException as error:
            if worker is not None:
                await worker.end()
            if isinstance(error, OSError | EOFError):  # a TimeoutError is an OSError
                raise FilterWorkerError("filters cannot be tried now", hint="try again later") from error
            raise
        return worker

    def _retire(self, worker: _Worker) -> None:
        if worker in self._free:
            self._free.remove(worker)
            self._spare(worker)

    def _spare(self, worker: _Worker) -> None:
        task = asyncio.create_task(worker.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends the processes that have nothing to do; the others end with this process."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        free, self._free = self._free, []
        for worker in free:
            if worker.idle is not None:
                worker.idle.cancel()
            await worker.end()
        await asyncio.gather(*self._ending)


def filter_routes(workers: FilterWorkers) -> list[Route]:
    """Where trials are asked for."""

    def handler(run: str) -> Handler:
        async def handle(request: Request) -> Response:
            body = await read_body(request, bytes_max=limits.FILTER_TRIAL_BYTES_MAX)
            status, answer = await workers.run(user_of(request).name, run, body)
            return Response(answer, status, media_type=JSON)

        return handle

    return [Route(f"{PREFIX}/{run}", handler(run), methods=[method]) for run, (method, _) in RUNS.items()]
