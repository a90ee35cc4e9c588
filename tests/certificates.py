"""Certificates for tests: a CA of its own, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)
LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files and as a number to tell it by."""

    certificate: Path
    key: Path
    serial: int


class Authority:
    """A CA whose files are in a folder; `path` is its own certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"Test {name}")
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key(), -DAY, 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: tuple[str, ...] = LOOPBACK,
        *,
        since: dt.timedelta = -DAY,
        until: dt.timedelta = 30 * DAY,
        subject: str | None = None,
        groups: tuple[str, ...] = (),
    ) -> Pair:
        """A certificate for some hosts in NAME.pem and NAME.key; files of that name are replaced.

        The common name is NAME or `subject`, the organizations are `groups`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _builder(_named(name if subject is None else subject, groups), self._name, key.public_key(), since, until)
            .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key", made.serial_number)
        pair.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        pair.key.chmod(0o600)
        return pair

    def context(self, client: Pair | None = None) -> ssl.SSLContext:
        """A client that trusts this CA alone, and perhaps shows a certificate."""
        made = ssl.create_default_context(cafile=self.path)
        if client is not None:
            made.load_cert_chain(client.certificate, client.key)
        return made


def _named(name: str, groups: tuple[str, ...] = ()) -> x509.Name:
    named = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    return x509.Name([*(x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in groups), *named])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, since: dt.timedelta, until: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + since)
        .not_valid_after(now + until)
    )
