"""Tokens from a file: its columns, its changes, and the commands that write it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headgate.auth.errors import AuthFileError
from headgate.auth.static_tokens import PREFIX, TokenFile, digest_of, line_of, new_token, parse, read
from headgate.auth.user import User
from headgate_cli.main import app

HEADGATE = Path(sys.executable).with_name("headgate")
HASH = f"sha256:{digest_of(b'secret').hex()}"


def test_the_columns_are_those_of_kubernetes() -> None:
    (one,) = parse(f'# comment\n\n{HASH},ada,u1,"dev, ops"\n', "file")
    assert one.user == User("ada", ("dev", "ops", "system:authenticated"), "u1")
    assert parse(line_of(one), "file") == (one,)
    (bare,) = parse(f"{HASH},ada", "file")
    assert (bare.user.uid, bare.user.groups) == ("", ("system:authenticated",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("secret,ada,1", "line 1: the first column is no hash"),
        (f"{HASH.upper()},ada", "no hash"),
        (f"{HASH[:-1]},ada", "no hash"),
        (HASH, "2 to 4 columns"),
        (f"{HASH},a,b,c,d", "2 to 4 columns"),
        (f"{HASH},", "names no user"),
        (f"{HASH},ada\n{HASH},bob", "line 2: this token is in the file already"),
        (f'{HASH},"ada', "line 1"),
        (f"{HASH},a\x01b", "control character"),
        (f"{HASH},{'a' * 9_000}", "more than"),
    ],
)
def test_a_wrong_line_is_named(text: str, message: str) -> None:
    with pytest.raises(AuthFileError, match=message):
        parse(text, "file")


def test_a_token_is_new_and_long() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(one.startswith(PREFIX) and len(one) == len(PREFIX) + 43 for one in tokens)


def test_a_changed_file_is_taken_up_when_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text(f"{HASH},ada\n")
    tokens = TokenFile(path)
    digest = digest_of(b"secret")
    assert tokens.user_of(digest) is not None
    path.write_text("")
    tokens.look()
    assert tokens.user_of(digest) is not None  # perhaps somebody is still writing
    tokens.look()
    assert tokens.user_of(digest) is None


def test_a_file_that_is_wrong_leaves_the_old_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text(f"{HASH},ada\n")
    tokens = TokenFile(path)
    for spoil in (lambda: path.write_text("nonsense"), path.unlink):
        spoil()
        tokens.look()
        tokens.look()
        assert tokens.user_of(digest_of(b"secret")) is not None


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(AuthFileError, match="cannot be read") as caught:
        TokenFile(tmp_path / "none")
    assert "headgate token create" in caught.value.hint


def token(*arguments: str, file: Path) -> Any:
    return CliRunner().invoke(app, ["token", *arguments, "--file", str(file)])


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.csv"
    made = token("create", "--user", "ci", "--group", "writers", "--group", "a,b", file=file)
    text = made.stdout.strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert text not in file.read_text()
    assert {digest_of(text.encode())} == {one.digest for one in read(file)}
    file.write_text(f"# of the team\n{file.read_text()}")
    assert token("create", "--user", "other", "--uid", "7", file=file).exit_code == 0
    heads, *rows = token("list", file=file).stdout.splitlines()
    assert heads.split() == ["ID", "USER", "UID", "GROUPS"]
    assert [row.split()[1:] for row in rows] == [["ci", "-", "writers,a,b"], ["other", "7", "-"]]
    id_ = rows[0].split()[0]
    assert token("revoke", id_, file=file).stdout == f"revoked {id_} of ci\n"
    assert [one.user.name for one in read(file)] == ["other"]
    assert file.read_text().startswith("# of the team\n")
    for wrong in (("revoke", id_), ("revoke",), ("revoke", id_, "--user", "ci"), ("create", "--user", "")):
        done = token(*wrong, file=file)
        assert (done.exit_code, done.stderr.startswith("error: ")) == (1, True)


def test_commands_at_the_same_time_lose_no_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.csv"
    commands = [
        subprocess.Popen(
            [HEADGATE, "token", "create", "--user", f"u{n}", "--file", file],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for n in range(2)
    ]
    assert [one.wait(60) for one in commands] == [0] * 2
    assert {one.user.name for one in read(file)} == {f"u{n}" for n in range(2)}
