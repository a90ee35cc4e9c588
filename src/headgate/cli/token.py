"""`headgate token`: makes, lists and revokes the tokens of a file, of which it holds hashes alone."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from headgate.auth.static_tokens import StaticToken, digest_of, line_of, new_token, read
from headgate.auth.user import authenticated, checked
from headgate.log.files import FileOps, replace_file
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.limits import TOKEN_LOCK_S_MAX
from headgate_cli.client import print_table
from headgate_cli.options import JsonLinesOption

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens in the file that the server reads.")

FILE_DEFAULT: Final = "headgate-tokens.csv"
TokenFileOption = Annotated[
    Path,
    typer.Option("--file", envvar="HEADGATE_TOKEN_AUTH_FILE", help="The file, as in headgate serve --token-auth-file."),
]


@app.command("create")
def create(
    user: Annotated[str, typer.Option(help="Name of the user that the token stands for.")],
    group: Annotated[
        list[str] | None, typer.Option("--group", "--groups", help="A group of the user. Repeatable.")
    ] = None,
    uid: Annotated[str, typer.Option(help="Distinguishes the user from earlier users with the same name.")] = "",
    file: TokenFileOption = Path(FILE_DEFAULT),
) -> None:
    """Create a token, add its hash to the file, and print the token. It is not shown again.

    Example: headgate token create --user ci --group writers --file tokens.csv > ci.token
    """
    groups = tuple(name.strip() for one in group or () for name in one.split(",") if name.strip())
    text = new_token()
    token = StaticToken(digest_of(text.encode()), authenticated(user, groups, uid))
    if problem := checked(token.user):
        raise InvalidInputError(f"this command {problem}", hint="give --user NAME and --group NAME")
    with _locked(file):
        kept = _lines(file) if file.exists() else []
        _write(file, [*kept, line_of(token)])
    typer.echo(text)
    typer.echo(f"token {token.id} of {user} is in {file}; the server takes it up within seconds", err=True)


@app.command("list")
def list_(file: TokenFileOption = Path(FILE_DEFAULT), json: JsonLinesOption = False) -> None:
    """Show whose tokens are in the file.

    Example: headgate token list --file tokens.csv
    """
    import msgspec

    tokens = read(file)
    if json:
        for one in tokens:
            shown = {"id": one.id, "user": one.user.name, "uid": one.user.uid, "groups": one.groups}
            typer.echo(msgspec.json.encode(shown).decode())
        return
    rows = [[one.id, one.user.name, one.user.uid or "-", ",".join(one.groups) or "-"] for one in tokens]
    print_table([["ID", "USER", "UID", "GROUPS"], *rows])


@app.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(help="Id of the token, as headgate token list shows it.")] = "",
    user: Annotated[str, typer.Option(help="All tokens of this user.")] = "",
    file: TokenFileOption = Path(FILE_DEFAULT),
) -> None:
    """Remove a token from the file. The server refuses it within seconds.

    Example: headgate token revoke --user ci --file tokens.csv
    """
    if bool(id) is bool(user):
        raise InvalidInputError("revoke takes the id of a token or --user", hint="headgate token list shows both")
    with _locked(file):
        tokens = read(file)
        gone = [one for one in tokens if one.id == id or (user and one.user.name == user)]
        if not gone:
            raise InvalidInputError(f"{file} has no such token", hint="headgate token list shows what is there")
        ends = tuple(f"sha256:{one.digest.hex()}" for one in gone)
        _write(file, [line for line in _lines(file) if not line.lstrip('" ').startswith(ends)])
    for one in gone:
        typer.echo(f"revoked {one.id} of {one.user.name}")


def _lines(file: Path) -> list[str]:
    """The lines of a file without faults, comments among them."""
    read(file)
    return [f"{line}\n" for line in file.read_text(encoding="utf-8").splitlines()]


def _write(file: Path, lines: Sequence[str]) -> None:
    """Puts a new file in the place of the old one, so that the server never reads a half."""
    with _writing(file):
        replace_file(FileOps(), file, "".join(lines).encode())


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "name the file with --file FILE"
        raise InvalidInputError(f"{file} cannot be written: {error.strerror}", hint=hint) from error


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Two commands at a time would lose one's token."""
    with _writing(file):
        lock = file.with_name(f".{file.name}.lock").open("w")
    ends_s = time.monotonic() + TOKEN_LOCK_S_MAX
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_s:
                    raise UnavailableError(f"another command changes {file}", hint="try again") from None
                time.sleep(0.05)
        yield
