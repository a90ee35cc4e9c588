"""Bodies in Kubernetes' protobuf, which kubectl sends of some kinds, as the documents that JSON has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from headgate.control import kubernetes_pb2 as pb
from headgate.control.errors import MalformedObjectError

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\0"
_MESSAGES: Final[Mapping[str, type[Message]]] = {
    name: getattr(pb, name)
    for name in (
        "Namespace",
        "DeleteOptions",
        "Secret",
        "ResourceQuota",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
        "SelfSubjectAccessReview",
        "SubjectAccessReview",
        "SelfSubjectRulesReview",
        "SelfSubjectReview",
    )
} | {"LocalSubjectAccessReview": pb.SubjectAccessReview}


def decode_protobuf(body: bytes) -> object:
    """A document in Kubernetes' envelope.

    Raises:
        MalformedObjectError: It is none, or of a kind that is read as JSON or YAML alone.
    """
    if not body.startswith(_MAGIC):
        raise MalformedObjectError("the body is no Kubernetes protobuf: it does not begin with k8s")
    try:
        envelope = pb.Unknown.FromString(body[len(_MAGIC) :])
        type_ = _MESSAGES.get(envelope.typeMeta.kind)
        if type_ is None:
            raise MalformedObjectError(
                f"a {envelope.typeMeta.kind[:100]!r} is not read as protobuf", hint="send JSON or YAML"
            )
        message = type_.FromString(envelope.raw)
    except DecodeError as error:
        raise MalformedObjectError(f"the body is no Kubernetes protobuf: {error}") from error
    found: dict[str, Any] = MessageToDict(message)
    extra = found.get("spec", {}).get("extra", {})
    for name in extra:
        extra[name] = extra[name].get("items", [])
    hard = found.get("spec", {}).get("hard", {})
    for name in hard:
        hard[name] = hard[name].get("string", "")
    return {"apiVersion": envelope.typeMeta.apiVersion, "kind": envelope.typeMeta.kind, **found}
