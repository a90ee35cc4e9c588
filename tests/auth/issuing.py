"""An issuer for tests of the verifier: keys, tokens in any state of repair, and what it answers, all in memory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from headgate.auth.authenticator import Authenticator
from headgate.auth.configuration import read
from headgate.auth.issuer_keys import IssuerFailedError, IssuerKeys
from headgate.auth.json_web_tokens import ClaimMapper, TrustedIssuer

URL = "https://issuer.example"
AUDIENCE = "headgate"
CONFIG = f"""
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: {URL}
    audiences: [{AUDIENCE}]
  claimMappings:
    username: {{claim: sub, prefix: "oidc:"}}
    groups: {{claim: groups, prefix: ""}}
  claimValidationRules:
  - expression: '!has(claims.level) || claims.level > 3'
    message: the level is too low
  userValidationRules:
  - expression: "!user.username.startsWith('oidc:system:')"
    message: reserved
"""


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Signs, and answers like an issuer; `is_away` makes it fail."""

    def __init__(self, url: str = URL) -> None:
        self.url = url
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.ed = ed25519.Ed25519PrivateKey.generate()
        self.keys: list[dict[str, Any]] = [
            {**_jwk(jwt.algorithms.RSAAlgorithm, self.rsa), "kid": "rsa", "use": "sig"},
            {**_jwk(jwt.algorithms.ECAlgorithm, self.ec), "kid": "ec", "use": "sig"},
            {**_jwk(jwt.algorithms.OKPAlgorithm, self.ed), "kid": "ed"},
        ]
        self.is_away = False
        self.asked: list[str] = []

    async def fetch(self, url: str) -> object:
        self.asked.append(url)
        if self.is_away:
            raise IssuerFailedError("away")
        if url.endswith("openid-configuration"):
            return {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        return {"keys": self.keys}

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        made = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now} | changed
        return {name: value for name, value in made.items() if value is not ...}

    def token(self, claims: Mapping[str, Any] | bytes | None = None, **header: Any) -> str:
        """A token; `header` changes the header, `...` leaves a member out."""
        made = {"alg": "RS256", "typ": "JWT", "kid": "rsa"} | header
        head = json.dumps({name: value for name, value in made.items() if value is not ...}).encode()
        body = claims if isinstance(claims, bytes) else json.dumps(self.claims() if claims is None else claims).encode()
        return self.signed(head, body, made.get("alg"))

    def signed(self, head: bytes, body: bytes, algorithm: object = "RS256") -> str:
        text = f"{b64(head)}.{b64(body)}"
        return f"{text}.{b64(self.signature(text.encode(), algorithm))}"

    def signature(self, text: bytes, algorithm: object) -> bytes:
        if algorithm == "ES256":
            r, s = decode_dss_signature(self.ec.sign(text, ec.ECDSA(SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")
        if algorithm == "EdDSA":
            return self.ed.sign(text)
        if algorithm == "PS256":
            return self.rsa.sign(text, padding.PSS(padding.MGF1(SHA256()), 32), SHA256())
        if isinstance(algorithm, str) and algorithm.upper().startswith("HS"):
            return hmac.new(self.public_pem(), text, hashlib.sha256).digest()
        if isinstance(algorithm, str) and algorithm.lower() == "none":
            return b"x"
        return self.rsa.sign(text, padding.PKCS1v15(), SHA256())

    def public_pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _jwk(kind: Any, key: Any) -> dict[str, Any]:
    return dict(kind.to_jwk(key.public_key(), as_dict=True))


def trusted(issuer: Issuer, folder: Path, config: str = CONFIG, **clock: Any) -> TrustedIssuer:
    path = folder / "authentication.yaml"
    path.write_text(config)
    (settings,) = read(path)
    keys = IssuerKeys(settings.issuer.url, settings.issuer.discovery_url, issuer.fetch, **clock)
    return TrustedIssuer(settings.issuer.url, settings.issuer.audiences, keys, ClaimMapper(settings, "jwt[0]"))


def authenticator(issuer: Issuer, folder: Path, config: str = CONFIG) -> Authenticator:
    return Authenticator(None, (trusted(issuer, folder, config),))
