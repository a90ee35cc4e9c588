"""What the authenticator remembers, for how long, whom it slows down, and certificates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from headgate.auth.authenticator import Authenticator
from headgate.auth.context import header_of, user_of
from headgate.auth.credentials import Credentials, der_of, user_of_certificate
from headgate.auth.errors import CredentialsRefusedError, IssuerUnavailableError, SlowedError
from headgate.auth.lockout import RefusalCounter
from headgate.auth.static_tokens import TokenFile, digest_of
from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate.observe.metrics import TOKENS_VERIFIED
from headgate_api import limits
from tests.auth.issuing import Issuer, trusted
from tests.certificates import Authority


class Setting:
    """An authenticator with an issuer, a file and clocks in hand."""

    def __init__(self, folder: Path, *, allow_anonymous: bool = False) -> None:
        self.issuer = Issuer()
        self.now_s = time.time()
        self.steady_s = 0.0
        self.path = folder / "tokens.csv"
        self.path.write_text(f"sha256:{digest_of(b'static').hex()},robot\n")
        self.file = TokenFile(self.path)
        self.issuers = (trusted(self.issuer, folder, clock_s=lambda: self.steady_s),)
        self.authenticator = Authenticator(
            self.file,
            self.issuers,
            allow_anonymous=allow_anonymous,
            clock_s=lambda: self.now_s,
            steady_s=lambda: self.steady_s,
        )

    async def name(self, token: str, address: str = "192.0.2.1") -> str:
        """The user's name, or why there is none."""
        shown = (f"Bearer {token}".encode(),) if token else ()
        try:
            return (await self.authenticator.authenticate(Credentials(shown, b"", address))).name
        except (CredentialsRefusedError, SlowedError, IssuerUnavailableError) as error:
            return error.reason


def run(folder: Path, test: Callable[[Setting], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Setting(folder))

    asyncio.run(main())


def test_a_token_is_verified_once_in_five_minutes(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        counted = TOKENS_VERIFIED.labels("jwt")
        before, token = counted.value, setting.issuer.token()
        for _ in range(10):
            assert await setting.name(token) == "oidc:ada"
        assert counted.value == before + 1
        setting.steady_s += limits.TOKEN_CACHED_S_MAX
        assert await setting.name(token) == "oidc:ada"
        assert counted.value == before + 2

    run(tmp_path, test)


def test_a_token_is_not_remembered_beyond_its_end(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        counted = TOKENS_VERIFIED.labels("jwt")
        token = setting.issuer.token(setting.issuer.claims(exp=int(time.time()) - 28))
        assert await setting.name(token) == "oidc:ada"
        setting.steady_s += 3
        before = counted.value
        assert await setting.name(token) == "expired" or counted.value == before + 1, "it is verified once more"
        ends = time.monotonic() + 30
        while await setting.name(token) == "oidc:ada":
            assert time.monotonic() < ends
            setting.steady_s += 3
            await asyncio.sleep(0.2)
        assert await setting.name(token) == "expired"

    run(tmp_path, test)


def test_a_token_that_is_taken_out_of_the_file_is_refused_at_once(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        assert await setting.name("static") == "robot"
        setting.path.write_text("")
        setting.file.look()
        setting.file.look()
        assert await setting.name("static") == "malformed"

    run(tmp_path, test)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.auth.authenticator.TOKENS_CACHED_MAX", 8)

    async def test(setting: Setting) -> None:
        for number in range(20):
            assert (
                await setting.name(setting.issuer.token(setting.issuer.claims(sub=f"u{number}"))) == f"oidc:u{number}"
            )
        assert len(setting.authenticator._known) == 8

    run(tmp_path, test)


def test_who_tries_tokens_is_slowed_down(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        good, later = setting.issuer.token(), setting.issuer.token(setting.issuer.claims(sub="later"))
        assert await setting.name(good) == "oidc:ada"
        tried = [await setting.name(f"guess-{number}") for number in range(limits.AUTH_REFUSALS_MAX + 5)]
        assert tried == ["malformed"] * limits.AUTH_REFUSALS_MAX + ["slowed"] * 5
        assert await setting.name(later) == "slowed"
        assert await setting.name(good) == "oidc:ada"  # who is known goes on
        assert await setting.name(later, "192.0.2.2") == "oidc:later"
        setting.steady_s += limits.AUTH_REFUSALS_S
        assert await setting.name(later) == "oidc:later"
        assert await setting.name("guess") == "malformed"

    run(tmp_path, test)


def test_who_shows_nothing_is_not_slowed_down(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        for _ in range(3 * limits.AUTH_REFUSALS_MAX):
            assert await setting.name("") == "anonymous"
        assert await setting.name(setting.issuer.token()) == "oidc:ada"

    run(tmp_path, test)


def test_refusals_are_counted_for_a_bounded_number_of_clients() -> None:
    counter = RefusalCounter(clock_s=lambda: 0.0)
    for number in range(limits.AUTH_CLIENTS_MAX + 100):
        counter.count(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(counter._clients) == limits.AUTH_CLIENTS_MAX
    for number in range(limits.AUTH_REFUSALS_MAX):
        counter.count(f"2001:db8::{number:x}")
    with pytest.raises(SlowedError) as caught:
        counter.check("2001:db8::ffff")  # the same network
    assert caught.value.retry_after_s == limits.AUTH_REFUSALS_S
    counter.check("2001:db8:1::")


def test_an_issuer_that_is_away_refuses_for_now_alone(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.issuer.is_away = True
        for _ in range(2 * limits.AUTH_REFUSALS_MAX):
            assert await setting.name(setting.issuer.token()) == "unavailable"
        assert await setting.name("static") == "robot"

    run(tmp_path, test)


def test_anonymous_requests_may_be_allowed(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path, allow_anonymous=True)
        assert await setting.authenticator.authenticate(Credentials()) is ANONYMOUS
        assert await setting.name("wrong") == "malformed"

    asyncio.run(main())


def certificate(folder: Path, name: str, groups: tuple[str, ...] = ()) -> bytes:
    return der_of(Authority(folder).issue("client", subject=name, groups=groups).certificate.read_bytes())


def test_a_certificate_names_a_user_and_groups(tmp_path: Path) -> None:
    der = certificate(tmp_path, "ada", ("dev", "ops"))
    assert user_of_certificate(der) == User("ada", ("dev", "ops", "system:authenticated"))
    assert user_of_certificate(certificate(tmp_path, "", ("dev",))) is None
    with pytest.raises(CredentialsRefusedError):
        user_of_certificate(b"nonsense")
    with pytest.raises(CredentialsRefusedError, match="control character"):
        user_of_certificate(certificate(tmp_path, "ada\nroot"))
    assert der_of(b"nonsense") == b""
    x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)


def test_a_certificate_counts_before_a_token(tmp_path: Path) -> None:
    async def main() -> str:
        found = Setting(tmp_path).authenticator
        return (await found.authenticate(Credentials((b"Bearer x",), certificate(tmp_path, "ada")))).name

    assert asyncio.run(main()) == "ada"


def test_a_user_goes_from_process_to_process() -> None:
    user = authenticated('ädä: "x", y', ("a b", "c"), "7", {"example.com/x": ("1", "2")})
    header = header_of(user)
    assert header.isascii()
    assert user_of(header) == user
    for wrong in (b"", b"!", b"e30="):
        with pytest.raises(ValueError):  # noqa: PT011 - msgspec's and base64's own
            user_of(wrong)
