"""The server's certificate: what is refused at start, and what a change of its files does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headgate.observe.metrics import TLS_CERTIFICATES
from headgate.server import preflight
from headgate.server.tls import CertificateKeeper, TlsFileError, TlsFiles, read_certificate
from headgate.settings import ClientAuth, Settings
from headgate_api.errors import InvalidInputError
from tests.certificates import DAY, Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files(pair: Pair, **given: object) -> TlsFiles:
    return TlsFiles(pair.certificate, pair.key, **given)  # type: ignore[arg-type]


def refused(found: TlsFiles) -> str:
    with pytest.raises(TlsFileError) as error:
        read_certificate(found)
    assert error.value.hint
    return error.value.message


def test_a_certificate_says_when_it_ends(authority: Authority) -> None:
    found = read_certificate(files(authority.issue("server", until=2 * DAY)))
    later = read_certificate(files(authority.issue("later", until=5 * DAY)))
    assert round((later.ends_s - found.ends_s) / 86_400) == 3
    assert found.client_ca is None


def test_files_that_are_not_there_or_not_ours_are_named(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("server")
    gone = tmp_path / "gone.pem"
    assert refused(TlsFiles(gone, pair.key)) == f"--tls-cert {gone} cannot be read: No such file or directory"
    assert refused(TlsFiles(pair.certificate, gone)) == f"--tls-key {gone} cannot be read: No such file or directory"
    assert "Is a directory" in refused(TlsFiles(pair.certificate, tmp_path))
    wanted = f"--tls-client-ca {gone} cannot be read: No such file or directory"
    assert refused(files(pair, client_ca=gone, client_auth=ClientAuth.REQUIRED)) == wanted


def test_files_that_hold_something_else_are_told(authority: Authority, tmp_path: Path) -> None:
    pair, text = authority.issue("server"), tmp_path / "text"
    text.write_text("hello")
    assert refused(TlsFiles(text, pair.key)) == f"--tls-cert {text} holds no certificate"
    assert refused(TlsFiles(pair.key, pair.key)) == f"--tls-cert {pair.key} holds no certificate"
    assert refused(TlsFiles(pair.certificate, pair.certificate)) == f"--tls-key {pair.certificate} holds no key"
    found = refused(files(pair, client_ca=text, client_auth=ClientAuth.REQUIRED))
    assert found == f"--tls-client-ca {text} holds no certificate of a CA"
    lines = pair.certificate.read_text().splitlines()
    text.write_text("\n".join([*lines[:2], "!" * 64, *lines[3:]]))
    assert refused(TlsFiles(text, pair.key)).startswith(f"the certificate in {text} with the key in")


def test_a_key_of_another_certificate_is_told(authority: Authority) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    message = refused(TlsFiles(one.certificate, other.key))
    assert message == f"the key in {other.key} does not belong to the certificate in {one.certificate}"


def test_a_key_with_a_passphrase_is_told_without_asking_for_it(authority: Authority, tmp_path: Path) -> None:
    pair, locked = authority.issue("server"), tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", pair.key, "-aes256", "-passout", "pass:x", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    assert refused(TlsFiles(pair.certificate, locked)) == f"--tls-key {locked} has a passphrase"


def test_a_certificate_that_is_not_valid_now_is_told(authority: Authority) -> None:
    old = authority.issue("old", since=-2 * DAY, until=-DAY)
    assert refused(files(old)) == f"--tls-cert {old.certificate}: the certificate has expired"
    early = authority.issue("early", since=DAY)
    assert refused(files(early)) == f"--tls-cert {early.certificate}: the certificate is not valid yet"


def counts() -> tuple[float, float]:
    return TLS_CERTIFICATES.labels("loaded").value, TLS_CERTIFICATES.labels("refused").value


def test_a_replaced_certificate_is_taken_up_when_it_rests(authority: Authority) -> None:
    keeper = CertificateKeeper(files(authority.issue("server")))
    before, (loaded, failed) = keeper.context(), counts()
    keeper.look()
    assert keeper.context() is before
    authority.issue("server")
    keeper.look()
    assert keeper.context() is before, "perhaps somebody is still writing"
    keeper.look()
    assert keeper.context() is not before
    assert counts() == (loaded + 1, failed)


def test_a_bad_replacement_leaves_the_old_one_and_is_told_once(authority: Authority) -> None:
    pair = authority.issue("server")
    keeper = CertificateKeeper(files(pair))
    before, (loaded, failed) = keeper.context(), counts()
    key = pair.key.read_bytes()
    authority.issue("server")
    pair.key.write_bytes(key)
    with capture_logs() as told:
        for _ in range(4):
            keeper.look()
    assert [line["event"] for line in told] == ["certificate not replaced, the old one stays"]
    assert "does not belong" in told[0]["error"]
    assert keeper.context() is before
    pair.key.unlink()
    for _ in range(3):
        keeper.look()
    assert counts() == (loaded, failed + 2)
    authority.issue("server")
    for _ in range(2):
        keeper.look()
    assert keeper.context() is not before
    assert counts() == (loaded + 1, failed + 2)


def test_a_certificate_that_ends_soon_is_warned_about_once_a_day(authority: Authority) -> None:
    pair, now_s = authority.issue("server", until=10 * DAY), 0.0
    keeper = CertificateKeeper(files(pair), clock_s=lambda: now_s)
    ends_s = read_certificate(files(pair)).ends_s
    for at_s, lines in ((ends_s - 8 * 86_400, 0), (ends_s - 6 * 86_400, 1), (ends_s - 6 * 86_400 + 60, 0)):
        now_s = at_s
        with capture_logs() as told:
            keeper.look()
        assert len(told) == lines
    now_s = ends_s - 4 * 86_400
    with capture_logs() as told:
        keeper.look()
    assert [line["event"] for line in told] == ["certificate ends soon"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tls_cert": "server.pem"}, "--tls-cert needs --tls-key"),
        ({"tls_key": "server.key"}, "--tls-key needs --tls-cert"),
        ({"tls_mode": "strict"}, "--tls-mode strict needs a certificate"),
        ({"tls_mode": "permissive"}, "--tls-mode permissive needs a certificate"),
        ({"tls_listen": "127.0.0.1:1"}, "--tls-listen is for --tls-mode permissive, and the mode is disabled"),
        ({"tls_client_auth": "required"}, "--tls-client-auth needs --tls-client-ca"),
        ({"tls_client_ca": "ca.pem"}, "--tls-client-ca needs TLS"),
        (
            {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "ca.pem", "tls_client_auth": "optional"},
            "gRPC cannot ask for a client certificate that is optional",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_told(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        preflight.check_tls(Settings(**given))
    assert error.value.message == message
    assert error.value.hint


def test_a_key_that_everybody_may_read_is_warned_about(authority: Authority) -> None:
    pair = authority.issue("server")
    settings = Settings(tls_cert=pair.certificate, tls_key=pair.key)
    for mode, lines in ((0o600, []), (0o640, []), (0o644, ["every user may read the key"])):
        pair.key.chmod(mode)
        with capture_logs() as told:
            preflight.check_tls(settings)
        assert [line["event"] for line in told] == lines
