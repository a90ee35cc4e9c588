"""The HTTP client for issuers of tokens: GET of JSON, https unless it is this machine, bounded in time and bytes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import BuilderError, PyreqwestError

from headgate.auth.configuration import check_url
from headgate.auth.errors import AuthFileError
from headgate.errors import HeadgateError
from headgate.limits import ISSUER_ANSWER_BYTES_MAX, ISSUER_FETCH_S_MAX


class IssuerFailedError(HeadgateError):
    """An issuer does not answer, or with something else than it should."""

    code = "issuer-failed"


class IssuerClient:
    """Asks one issuer. Belongs to an event loop once it is used.

    Args:
        certificate_authority: CAs that are trusted, as PEM; empty for the system's.

    Raises:
        AuthFileError: The CAs cannot be read.
    """

    def __init__(self, certificate_authority: str = "") -> None:
        builder = (
            ClientBuilder()
            .follow_redirects(False)
            .referer(False)
            .gzip(False)
            .brotli(False)
            .zstd(False)
            .deflate(False)
            .user_agent("headgate")
            .connect_timeout(timedelta(seconds=ISSUER_FETCH_S_MAX / 2))
            .timeout(timedelta(seconds=ISSUER_FETCH_S_MAX))
            .pool_max_idle_per_host(0)
        )
        try:
            if certificate_authority:
                if "-----BEGIN CERTIFICATE-----" not in certificate_authority:
                    raise ValueError("no certificate in PEM format")
                builder = builder.add_root_certificate_pem(certificate_authority.encode())
            self._client = builder.build()
        except (BuilderError, ValueError) as error:
            raise AuthFileError(
                f"issuer.certificateAuthority cannot be used: {error}", hint="give certificates in PEM format"
            ) from error

    async def get(self, url: str) -> object:
        """The JSON at a URL.

        Raises:
            IssuerFailedError: There is none.
        """
        try:
            check_url(url, "URL")
            async with (
                asyncio.timeout(ISSUER_FETCH_S_MAX),
                self._client.get(url).header("accept", "application/json").build_streamed() as response,
            ):
                if response.status != 200:
                    raise IssuerFailedError(f"{url} answers with status {response.status}")
                reader, body = response.body_reader, bytearray()
                while (chunk := await reader.read_chunk()) is not None:
                    body += bytes(chunk)
                    if len(body) > ISSUER_ANSWER_BYTES_MAX:
                        raise IssuerFailedError(f"the answer of {url} is over {ISSUER_ANSWER_BYTES_MAX} bytes")
            return msgspec.json.decode(bytes(body))
        except (PyreqwestError, ValueError, RecursionError, TimeoutError) as error:
            raise IssuerFailedError(f"{url} does not answer as an issuer does: {error}") from error

    async def close(self) -> None:
        """Ends its connections."""
        await self._client.close()
