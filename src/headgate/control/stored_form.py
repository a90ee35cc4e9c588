"""The form of an object in control.db: its JSON, which of a Secret is encrypted as a whole."""

from __future__ import annotations

from headgate.control.objects import Kind, Object, ObjectKey, decode_stored, encode, key_of
from headgate.storage.keyring import Keyring, NoSecretsKeyError, SealedError

SEALED_KINDS = frozenset({Kind.SECRET})
"""What is encrypted: values, annotations (which may repeat the values), and everything else but name and labels."""


class StoredForm:
    """Makes stored bytes of objects, and objects of stored bytes.

    Args:
        keys: None where there are none: then no Secret can be stored or read.
    """

    def __init__(self, keys: Keyring | None = None) -> None:
        self.keys = keys

    def of(self, obj: Object) -> bytes:
        """The bytes to be stored.

        Raises:
            NoSecretsKeyError: A Secret, and no key to encrypt it by.
        """
        key, body = key_of(obj), encode(obj)
        if key.kind not in SEALED_KINDS:
            return body
        if self.keys is None:
            raise NoSecretsKeyError
        return self.keys.seal(body, path=key.path, uid=obj.metadata.uid)

    def json(self, key: ObjectKey, stored: bytes) -> bytes:
        """The object's JSON.

        Raises:
            SealedError: A Secret that no key opens.
        """
        if key.kind not in SEALED_KINDS:
            return stored
        if self.keys is None:
            raise SealedError(
                f"the Secret {key.path} is encrypted, and this server has no key",
                hint="start it with the --secrets-key-file or --secrets-key-command that it had",
            )
        return self.keys.open(stored, path=key.path)

    def object(self, key: ObjectKey, stored: bytes) -> Object:
        """The object; raises as `json`."""
        return decode_stored(key.kind, self.json(key, stored))
