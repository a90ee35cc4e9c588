"""A real Headgate as a child process, and the few API calls that tests, benchmarks and examples need."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headgate.server.parts import MATCHER_VARIABLE
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.objects.kinds import Kind

Object = dict[str, Any]
"""A Kubernetes-style JSON object, as the API has it."""

START_S_MAX: Final = 240.0
"""A server that is not ready by then is not going to be: the JVM takes some 10 s, on a busy machine many times that."""

_SPARK: Final = "headgate.server.processes.matcher"
_PORTS: Final = range(12_000, 32_000)
"""Below those that Linux chooses itself, from 32,768 on."""
_turns: Final = itertools.count(secrets.randbelow(len(_PORTS)))
"""Counts through the ports. Each process begins elsewhere, also where tests give `random` the same seed."""

_KINDS: Final = {kind.plural: kind for kind in Kind}


class ApiError(HeadgateError):
    """The API answered a call with an error; `status` is the HTTP status, `body` the Status object."""

    code = "api"

    def __init__(self, status: int, body: Object) -> None:
        super().__init__(f"{status}: {body.get('message', body)}")
        self.status = status
        self.body = body


class Server:
    """`headgate serve` as a child process group, on free ports; a context manager that stops it at the end.

    Its ports stay the same over restarts. `arguments` are further ones of `headgate serve`; its standard error goes to
    `log`, None for ours. `program` is the command, None for the one beside our interpreter; `secure` is what it is
    called with over TLS, None for plain HTTP. With `spark` Spark matches, also where our environment names another
    matcher. Calls of the API show the `token`, where it is not empty.
    """

    def __init__(
        self,
        data: Path,
        port: int | None = None,
        *,
        arguments: tuple[str, ...] = (),
        log: Path | None = None,
        program: Path | None = None,
        secure: ssl.SSLContext | None = None,
        spark: bool = False,
    ) -> None:
        self.data = data
        self.port = port if port is not None else free_port()
        self.url = f"{'http' if secure is None else 'https'}://127.0.0.1:{self.port}"
        self.grpc = f"127.0.0.1:{free_port()}"
        self._arguments = arguments
        self._log = log
        self._secure = secure
        self._matcher = {MATCHER_VARIABLE: _SPARK} if spark else {}
        self.token = ""
        self._program = program if program is not None else Path(sys.executable).with_name("headgate")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, wait: bool = True) -> None:
        """Starts the server; returns when it is ready. UnavailableError: it ended, or `START_S_MAX` have passed."""
        command = [self._program, "serve", "--data", self.data]
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self._log.open("ab")) if self._log else None
            self._process = subprocess.Popen(
                [*map(str, command), "--listen", f"127.0.0.1:{self.port}", "--grpc", self.grpc, *self._arguments],
                env=os.environ | self._matcher,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not self.is_ready():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise UnavailableError(f"the server on {self.url} is not ready", hint=f"its log: {self._log}")
            time.sleep(0.2)

    def is_ready(self) -> bool:
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=self._secure) as answer:
                    return bool(answer.status == 200)
            except OSError:  # `ssl` does not close a socket that is reset before its handshake
                return False

    def stop(self) -> int:
        """Stops it as an operator would (SIGTERM); returns the exit status."""
        return self._ended_by(subprocess.Popen.terminate)

    def interrupt(self) -> int:
        """Stops it as Ctrl-C does: SIGINT to every process of it, the JVM too; returns the exit status."""
        return self._ended_by(lambda process: os.killpg(process.pid, signal.SIGINT))

    def _ended_by(self, tell: Callable[[subprocess.Popen[bytes]], None]) -> int:
        if self._process is None:
            return 0
        tell(self._process)
        status = self._process.wait()
        self._process = None
        return status

    def kill(self) -> None:
        """SIGKILL to every process of the server at once, the JVM included."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """Process (and group) id of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def objects_url(self, kind: str, namespace: str) -> str:
        """Where the objects of `kind` (`brokers`, `triggers` or `subscriptions`) live."""
        return f"{self.url}{_KINDS[kind].root}/namespaces/{namespace}/{kind}"

    def call(self, method: str, url: str, body: Object | None = None) -> Object:
        """One API call; ApiError when the answer is not 2xx."""
        request = urllib.request.Request(
            url,
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"},
            method=method,
        )
        if self.token:
            request.add_header("authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._secure) as answer:
                return json.loads(answer.read())  # type: ignore[no-any-return]
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, json.loads(error.read())) from error

    def create(self, kind: str, namespace: str, name: str, spec: Object) -> Object:
        return self.call("POST", self.objects_url(kind, namespace), object_of(kind, namespace, name, spec))

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.call("GET", f"{self.objects_url(kind, namespace)}/{name}")

    def list(self, kind: str, namespace: str) -> list[Object]:
        return self.call("GET", self.objects_url(kind, namespace))["items"]  # type: ignore[no-any-return]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self.call("DELETE", f"{self.objects_url(kind, namespace)}/{name}")

    def wait_trigger_ready(self, namespace: str, name: str, *, seconds: float = 120.0) -> float:
        return self.wait_object_ready("triggers", namespace, name, seconds=seconds)

    def wait_object_ready(self, kind: str, namespace: str, name: str, *, seconds: float = 120.0) -> float:
        """Waits until the object as it is now is Ready; returns the seconds that it took.

        UnavailableError has its conditions.
        """
        started = time.monotonic()
        while not is_in_order(found := self.get(kind, namespace, name)):
            if (waited_s := time.monotonic() - started) > seconds:
                raise UnavailableError(f"{kind} {namespace}/{name} is not Ready: {found.get('status')}")
            time.sleep(max(0.02, 0.1 * waited_s))  # who asks all the time takes the processor from the server
        return time.monotonic() - started


def object_of(kind: str, namespace: str, name: str, spec: Object) -> Object:
    """An object as the API takes it; `kind` is `brokers`, `triggers` or `subscriptions`."""
    return {
        "apiVersion": _KINDS[kind].api_version,
        "kind": _KINDS[kind].value,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def parts_of(supervisor: int) -> dict[str, int]:
    """Process ids of a server's parts that live now, by their names; `supervisor` is that of `headgate serve`."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            words = (stat.parent / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:  # it has just ended
            continue
        if parent == supervisor and b"headgate.server" in words:
            found[words[-1].decode()] = int(stat.parent.name)
    return found


def java_of(server: Server) -> int:
    """Process id of the JVM of a server's matcher."""
    matcher = (server.data / "run" / "matcher.ready").read_text()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, _, rest = stat.read_text().rpartition(") ")
            if rest.split()[1] == matcher and b"java" in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
    raise UnavailableError("the matcher has no JVM")


def condition(item: Object, kind: str) -> Object:
    """The condition `kind` of an object, {} when it has none yet."""
    return next((c for c in item.get("status", {}).get("conditions", []) if c["type"] == kind), {})


def is_in_order(item: Object) -> bool:
    """Whether an object is Ready with what its spec says now."""
    seen = item.get("status", {}).get("observedGeneration")
    return bool(seen == item["metadata"]["generation"] and condition(item, "Ready").get("status") == "True")


def free_port() -> int:
    """A port of the loopback interface that is free now, each time another one.

    Another process listens there some seconds later. So the port is outside the range from which the kernel chooses.
    """
    while True:
        port = _PORTS[next(_turns) % len(_PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
