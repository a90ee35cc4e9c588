"""Requests of commands to a running server, and their output."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import shutil
import ssl
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, NoReturn
from urllib.parse import quote, unquote, urlsplit

import msgspec
import typer

from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError
from headgate_api.event import rfc3339
from headgate_api.event.json_text import decode_strictly
from headgate_api.event.names import full_name
from headgate_api.objects.kinds import Kind
from headgate_api.objects.metadata import duration_s
from headgate_cli import access

SERVER_DEFAULT: Final = "http://127.0.0.1:8080"
TIMEOUT_S: Final = 30.0
"""One request: a healthy server answers in milliseconds."""
EXIT_USAGE: Final = 2
"""Exit status for an option or an argument that makes no sense; else a failure is 1."""
_PROBE_S_MAX: Final = 5.0
"""How long a port is asked whether it speaks TLS."""
_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's codes for a host name and an address that the certificate does not bear."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_CLIENT_REFUSED: Final = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE")
"""Parts of the alerts with which a server ends a handshake for the client's certificate."""
_SHOW_CERTIFICATE: Final = "--client-cert FILE and --client-key FILE show a certificate of a CA that the server knows"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGE: Final = re.compile(r"([0-9]{1,15})([smhdw])")
_AGES: Final = re.compile(f"(?:{_AGE.pattern})+")
_DAY: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_HINT: Final = re.compile(r" \(hint: (.*)\)$", re.DOTALL)
TIMES_HELP: Final = "a time (2026-01-02, 2026-01-02T10:00:00Z), an age (90s, 15m, 1h30m, 7d)"
"""What every option for a time takes."""
AHEAD_HELP: Final = ", or how far it lies ahead (+90s, +1h30m)"
"""What those take, too, that are about times to come."""
_SHOWN_CHARS: Final = 64
_BETWEEN: Final = "   "
_CELL_CHARS_MIN: Final = 8
_NAMESPACE_OF: Final = re.compile(r"/apis?/.+/namespaces/([^/]+)/|/([^/]+)/[^/]+(?:/events)?(?:\?|$)")
"""Of paths of the API, and of those of brokers."""
BROKER_DEFAULT: Final = "default"


class RefusedError(HeadgateError):
    """The server refused a request; the message and the hint are its own."""

    code = "refused"

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ApiRefusedError(RefusedError, InvalidInputError):
    """It refused what was asked for."""


class NotServedError(RefusedError, UnavailableError):
    """It takes nothing now, or nothing of this client: what was asked for is not to blame."""

    code = "not-served"


class NoServerError(UnavailableError):
    """No server answers at the URL, or not with JSON."""

    code = "no-server"


class TlsFailedError(UnavailableError):
    """No TLS connection to the server is possible as things are."""

    code = "tls"


def request(
    server: str,
    method: str,
    path: str,
    *,
    body: dict[str, Any] | msgspec.Raw | None = None,
    content_type: str = "application/json",
    accept: str = "application/json",
    missing_ok: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Any:  # noqa: ANN401 - JSON of the server
    """The server's answer, from JSON; None for none, and for what is not there, with `missing_ok`.

    Raises ApiRefusedError when the server refused the request, NotServedError when it would refuse any, NoServerError
    when none answers.
    """
    headers = {"Accept": accept, "Content-Type": content_type}
    try:
        data = msgspec.json.encode(body) if body is not None else None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"the object holds a value that JSON cannot hold: {error}") from error
    call = urllib.request.Request(_url(server, path), data, headers, method=method)
    try:
        with _translated_errors(server), _opened(call, timeout_s) as response:
            return json.loads(response.read() or b"null")
    except ApiRefusedError as error:
        if error.status == HTTPStatus.NOT_FOUND and missing_ok:
            return None
        raise _blamed(server, path, error) from error


def api_path(api_version: str, namespace: str | None, *names: object) -> str:
    """A path of the API: in a namespace, or in all with None; `names` are what follows, such as `triggers`, `gold`."""
    within = ("namespaces", namespace) if namespace is not None else ()
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return "/".join([root, *(quote(str(name), safe="") for name in (*within, *names))])


def object_path(kind: Kind, namespace: str, *names: str) -> str:
    """The API's path of an object: its name, and perhaps what is below it."""
    return api_path(kind.api_version, namespace if kind.is_namespaced else None, kind.plural, *names)


def split_name(name: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of what a person names: `name` or `namespace/name`; "" stays a name that is not given."""
    namespace, _, name = full_name(name, namespace).partition("/")
    return namespace, name


def named_path(kind: Kind, name: str, namespace: str, *below: str) -> str:
    """The API's path of an object that a person names, and perhaps of what is below it."""
    if not kind.is_namespaced:
        return object_path(kind, "", name, *below)
    namespace, name = split_name(name, namespace)
    return object_path(kind, namespace, name, *below)


def time_text(text: str) -> str:
    """An age (90s, 1h30m, 7d, PT1H) or a day (2026-01-02) as the time it means; the server judges everything else."""
    try:
        if _DAY.fullmatch(text):
            return datetime.fromisoformat(f"{text}T00:00:00Z").isoformat().replace("+00:00", "Z")
        return _from_now(-_age_s(text))
    except (ValueError, OverflowError):
        return text


def instant_text(option: str, text: str, *, ahead: bool = False) -> str:
    """What an option takes that is a time alone, or nothing, as RFC 3339; InvalidInputError by the option's name.

    With `ahead` it may be how far it lies ahead: +1h is in an hour.
    """
    try:
        found = _from_now(_age_s(text[1:])) if ahead and text.startswith("+") else time_text(text)
    except (ValueError, OverflowError):
        found = text
    if text and rfc3339.micros(found) is None:
        hint = f"{TIMES_HELP}{AHEAD_HELP if ahead else ''}"
        raise InvalidInputError(f"{option} {text[:_SHOWN_CHARS]!r} is no time", hint=hint)
    return found


def _age_s(text: str) -> float:
    """ValueError where it is none."""
    if _AGES.fullmatch(text):
        return sum(int(count) * _UNITS_S[unit] for count, unit in _AGE.findall(text))
    return duration_s(text)


def _from_now(seconds: float) -> str:
    """OverflowError where there is no such time."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def filter_value(text: str) -> str | dict[str, Any]:
    """The option --filter: CEL, or JSON as in a trigger's `spec.filter`; InvalidInputError where that is none."""
    try:
        return decode_strictly(text.encode(), dict[str, Any]) if text.lstrip().startswith("{") else text
    except ValueError as error:
        raise InvalidInputError(f"--filter is no valid JSON: {error}", hint="CEL needs no braces") from error


def lines(server: str, path: str, *, accept: str, timeout_s: float | None = None) -> Generator[bytes]:
    """The lines of an answer as they come, for as long as the server sends any; raises as `request`.

    `timeout_s` is how long it may be silent; None: for ever.
    """
    call = urllib.request.Request(_url(server, path), headers={"Accept": accept})
    try:
        with _translated_errors(server), _opened(call, timeout_s) as response:
            yield from response
    except ApiRefusedError as error:
        raise _blamed(server, path, error) from error


def _blamed(server: str, path: str, error: ApiRefusedError) -> ApiRefusedError:
    """The error of a path; where its whole namespace is missing, that instead of the object."""
    found = _NAMESPACE_OF.match(path) if error.status == HTTPStatus.NOT_FOUND else None
    if found is None:
        return error
    namespace = unquote(found[1] or found[2])
    try:
        request(server, "GET", api_path("v1", None, "namespaces", namespace))
    except ApiRefusedError as answer:
        if answer.status == HTTPStatus.NOT_FOUND:
            hint = "-n NAMESPACE or NAMESPACE/NAME names another; headgate get brokers -A shows all"
            return ApiRefusedError(error.status, f"there is no namespace {namespace!r}", hint=hint)
    hint = error.hint or f"-n names another namespace than {namespace!r}"
    return ApiRefusedError(error.status, error.message, hint=hint)


def _opened(call: urllib.request.Request, timeout_s: float | None = None) -> Any:  # noqa: ANN401 - urllib's answer
    secure = access.context() if call.type == "https" else None
    shown = access.authorization(call.full_url)
    if shown:
        call.add_unredirected_header("Authorization", shown)
    return urllib.request.urlopen(call, timeout=timeout_s, context=secure)


def _url(server: str, path: str) -> str:
    if urlsplit(server).scheme not in ("http", "https"):
        raise NoServerError(f"{server!r} is no URL of a server", hint=f"for example {SERVER_DEFAULT}")
    return server.rstrip("/") + path


@contextlib.contextmanager
def _translated_errors(server: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error) from error
    except (ValueError, http.client.HTTPException) as error:
        if (failed := _handshake_error(server, error)) is not None:
            raise failed from error
        raise NoServerError(f"{server} does not answer like Headgate: {error}", hint="check --server") from error
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, OSError) and (failed := _handshake_error(server, reason)) is not None:
            raise failed from error
        raise NoServerError(
            f"no server at {server}: {reason}",
            hint="start one with `headgate serve`, or name it with --server or HEADGATE_SERVER",
        ) from error


def _handshake_error(server: str, error: BaseException) -> TlsFailedError | None:
    """What a failure of a request means for TLS, and what to do; None when it is none of TLS."""
    where = urlsplit(server)
    host, says, hint = where.netloc, "", ""
    is_broken = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    if isinstance(error, ssl.SSLCertVerificationError):
        says = f"the certificate of {host} is not trusted: {error.verify_message}"
        hint = "--cacert FILE (HEADGATE_CACERT) names the CA that signed it"
        if error.verify_code in _WRONG_NAME:
            says = f"the certificate of {host} does not bear the name {where.hostname}: {error.verify_message}"
            hint = "name the server as its certificate does"
    elif isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        says, hint = f"no TLS connection to {host}: {reason}", "check --server"
        if any(name in reason for name in _NO_TLS):
            says, hint = f"{host} does not speak TLS", f"use http://{host}"
        elif any(name in reason for name in _CLIENT_REFUSED):
            says, hint = f"{host} does not accept this client: {reason.replace('_', ' ').lower()}", _SHOW_CERTIFICATE
    elif where.scheme == "https" and is_broken:  # in TLS 1.3 a server refuses a client after the client's handshake
        says = f"{host} closed the connection: perhaps it does not accept this client's certificate"
        hint = _SHOW_CERTIFICATE
    elif where.scheme == "http" and is_broken and _speaks_tls(where.hostname, where.port):
        says, hint = f"{host} speaks TLS", f"use --server https://{host}"
    return TlsFailedError(says, hint=hint) if says else None


def _speaks_tls(host: str | None, port: int | None) -> bool:
    """Whether a handshake gets an answer of TLS; nothing is sent but the handshake."""
    import socket

    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host or "", port or 80), _PROBE_S_MAX) as plain,
            asking.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


_OF_ANY: Final = frozenset([HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE])
"""Statuses that any other request would get as well."""


def _refusal(error: urllib.error.HTTPError) -> RefusedError:
    """What the server says: a `Status` of its API, or the problem details of a publish URI."""
    message, hint = f"HTTP {error.code} {error.reason}", ""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said = {"hint": "", **json.load(error)}
        message, hint = str(said.get("message") or said["detail"]), str(said["hint"])
    if message.endswith(")") and (found := _HINT.search(message)) is not None:  # a `Status` has no field for it
        message, hint = message[: found.start()], found[1]
    return (NotServedError if error.code in _OF_ANY else ApiRefusedError)(error.code, message, hint=hint)


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 broker`, `1,203 brokers`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def print_table(rows: list[list[str]]) -> None:
    """Lines of columns. On a terminal, empty ones are left out, and the widest are wrapped until the lines fit."""
    columns = [[str(cell) for cell in column] for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    if sys.stdout.isatty():
        columns = [column for column in columns if any(column[1:])]
        widths = [max(map(len, column)) for column in columns]
        room = shutil.get_terminal_size().columns - len(_BETWEEN) * (len(columns) - 1)
        while sum(widths) > room and max(widths) > _CELL_CHARS_MIN:
            widths[widths.index(max(widths))] -= 1
    wrapped = [
        [[cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False) for cell in column]
        for column, width in zip(columns, widths, strict=True)
    ]
    for row in zip(*wrapped, strict=True):
        for line in itertools.zip_longest(*row, fillvalue=""):
            print_line(line, widths)


def print_line(cells: Sequence[str], widths: Sequence[int]) -> None:
    """One line of columns; a cell that is wider than its column pushes those behind it."""
    padded = itertools.zip_longest(cells, widths[: len(cells)], fillvalue=0)
    typer.echo(_BETWEEN.join(str(cell).ljust(width) for cell, width in padded).rstrip())


def print_error(message: str, *, hint: str = "", word: str = "error") -> None:
    """Prints an error, or what another word says that it is, and a hint to stderr."""
    from rich.console import Console  # here: most commands end without an error
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text.assemble((f"{word}:", "bold red" if word == "error" else "bold yellow"), f" {message}"))
    if hint:
        console.print(Text.assemble(("hint:", "bold cyan"), f" {hint}"))


def fail(message: str, hint: str = "", *, status: int = 1) -> NoReturn:
    """Prints an error and ends with an exit status."""
    print_error(message, hint=hint)
    raise typer.Exit(status)
