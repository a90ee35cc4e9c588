"""`spec.delivery.auth`: how deliveries say who sends them, with references to Secrets of the trigger's namespace."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.control.metadata import ApiStruct, field_doc


class SecretReference(ApiStruct, frozen=True):
    """A Secret of the trigger's namespace, or one of its values."""

    name: Annotated[str, field_doc("Name of the Secret.", required=True)] = ""
    key: Annotated[str, field_doc("Which of its values; each use has a default.")] = ""


class SecretAuth(ApiStruct, frozen=True):
    """What needs nothing but a Secret."""

    secret_ref: Annotated[SecretReference, field_doc("Where the values are.", required=True)] = SecretReference()


class HeaderAuth(ApiStruct, frozen=True):
    """A header of any name."""

    name: Annotated[str, field_doc("Name of the header.", required=True)] = ""
    secret_ref: Annotated[SecretReference, field_doc("Its value; the key is value by default.", required=True)] = (
        SecretReference()
    )


class OAuth2Auth(ApiStruct, frozen=True):
    """A bearer token by OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    token_url: Annotated[str, field_doc("URL of the token endpoint.", required=True)] = ""
    secret_ref: Annotated[
        SecretReference, field_doc("Client: its values are client_id and client_secret.", required=True)
    ] = SecretReference()
    scopes: Annotated[tuple[str, ...], field_doc("Scopes to ask for.")] = ()
    audience: Annotated[str, field_doc("Parameter audience of the request, which some servers want.")] = ""
    client_authentication: Annotated[
        str,
        field_doc(
            "Where the client's secret stands: in a header (basic, the default) or the body.", enum=["basic", "body"]
        ),
    ] = ""
    ca_certs: Annotated[str, field_doc("CA of the token endpoint, as PEM, beside the system's.")] = msgspec.field(
        default="", name="CACerts"
    )


class AuthSpec(ApiStruct, frozen=True):
    """`spec.delivery.auth`: one of bearer, basic and oauth2 at most; the others go with each other."""

    bearer: Annotated[SecretAuth | None, field_doc("Authorization: Bearer; the key is token by default.")] = None
    basic: Annotated[SecretAuth | None, field_doc("Authorization: Basic; the values are username and password.")] = None
    oauth2: Annotated[OAuth2Auth | None, field_doc("A token of an OAuth 2.0 server.")] = None
    header: Annotated[HeaderAuth | None, field_doc("A header, such as X-Api-Key.")] = None
    client_certificate: Annotated[
        SecretAuth | None, field_doc("TLS client certificate; the values are tls.crt and tls.key.")
    ] = None
    signature: Annotated[
        SecretAuth | None,
        field_doc(
            "Signature by Standard Webhooks; the key is secret by default, its value one or more whsec_ secrets."
        ),
    ] = None

    @property
    def secret_names(self) -> frozenset[str]:
        """The Secrets that it refers to."""
        parts = (self.bearer, self.basic, self.oauth2, self.header, self.client_certificate, self.signature)
        return frozenset(one.secret_ref.name for one in parts if one is not None)
