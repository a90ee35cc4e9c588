"""The Kafka library, which is an optional dependency, and its errors in our words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headgate import DISTRIBUTION
from headgate.errors import HeadgateError, InvalidInputError, TooLargeError, UnavailableError
from headgate.store.config import KafkaConfig, resolved

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

ClientT = TypeVar("ClientT")
_RECENT_S: Final = 60.0
"""A fault that was reported longer ago explains nothing any more."""


class KafkaUnreachableError(UnavailableError):
    """No broker answers."""

    code = "kafka-unreachable"


class KafkaDeniedError(HeadgateError):
    """The cluster refuses who we are, or what we may."""

    code = "kafka-denied"


def library() -> ModuleType:
    """The package `confluent_kafka`.

    Raises:
        InvalidInputError: It is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise InvalidInputError(
            "the Kafka library is not installed", hint=f"pip install '{DISTRIBUTION}[cluster]'", detail=str(error)
        ) from error
    return confluent_kafka


class Faults:
    """What a client's connections report in the background, which its calls' errors leave out.

    A call says "timed out" where the cause was a wrong password: librdkafka tells the cause to `error_cb`.
    """

    def __init__(self) -> None:
        self._newest: dict[int, tuple[float, KafkaError]] = {}
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError) -> None:
        """Takes an error; librdkafka's callback."""
        with self._lock:
            self._newest[error.code()] = time.monotonic(), error

    @property
    def denied(self) -> KafkaError | None:
        """That the cluster does not know us: trying again does not help."""
        return self._reported(library().KafkaError._AUTHENTICATION)

    def cause(self, error: KafkaError) -> KafkaError:
        """Why nothing was answered, where that is all that a call's error says; else the error."""
        kafka = library().KafkaError
        if error.code() not in (kafka._TIMED_OUT, kafka._MSG_TIMED_OUT, kafka._TRANSPORT, kafka._ALL_BROKERS_DOWN):
            return error
        for code in (kafka._AUTHENTICATION, kafka._SSL, kafka._RESOLVE, kafka._TRANSPORT):
            if (reported := self._reported(code)) is not None:
                return reported
        return error

    def _reported(self, code: int) -> KafkaError | None:
        with self._lock:
            at, error = self._newest.get(code, (-_RECENT_S, None))
        return error if time.monotonic() - at < _RECENT_S else None


def options(config: KafkaConfig, faults: Faults, own: Mapping[str, object]) -> dict[str, Any]:
    """Everything that a client of librdkafka is made with; it may hold secrets.

    Args:
        config: Of the deployment.
        faults: Where its connections report.
        own: What the caller sets; it wins.
    """
    return {
        **resolved(config.options),
        "bootstrap.servers": config.bootstrap,
        "error_cb": faults,
        "log_level": 0,  # what it would write to standard error comes by error_cb
        **own,
    }


def made_client(
    kind: Callable[[dict[str, Any]], ClientT], config: KafkaConfig, faults: Faults, own: Mapping[str, object]
) -> ClientT:
    """A client of librdkafka.

    Args:
        kind: Its class.
        config: Of the deployment.
        faults: Where its connections report.
        own: See `options`.

    Raises:
        InvalidInputError: An option is none of its own: librdkafka names it, never its value's secret.
    """
    try:
        return kind(options(config, faults, own))
    except library().KafkaException as error:
        raise InvalidInputError(
            f"kafka.options: {_short(error.args[0].str())}",
            hint="the names are those of librdkafka's CONFIGURATION.md",
        ) from None  # the cause's frames hold the options


def admin_client(config: KafkaConfig, faults: Faults, own: Mapping[str, object] = MappingProxyType({})) -> AdminClient:
    """A client that asks about topics and groups, and changes them; see `made_client`.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """
    library()
    from confluent_kafka.admin import AdminClient

    return made_client(AdminClient, config, faults, own)


def translated(error: KafkaError, doing: str, config: KafkaConfig) -> HeadgateError:
    """An error of librdkafka or of a broker as one of ours.

    Args:
        error: The error.
        doing: What failed, as the beginning of a sentence: "the topic events cannot be made".
        config: Of the deployment.
    """
    kafka = library().KafkaError
    code, said = error.code(), _short(error.str())
    if code in (kafka._AUTHENTICATION, kafka.SASL_AUTHENTICATION_FAILED):
        hint = "check sasl.mechanism, sasl.username and the file of sasl.password_file in kafka.options"
        return KafkaDeniedError(f"{doing}: Kafka does not accept our credentials: {said}", hint=hint)
    if code in (
        kafka.TOPIC_AUTHORIZATION_FAILED,
        kafka.CLUSTER_AUTHORIZATION_FAILED,
        kafka.GROUP_AUTHORIZATION_FAILED,
        kafka.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ):
        hint = "an administrator of Kafka must give our user the right (ACL); docs/howto/kafka.md lists them"
        return KafkaDeniedError(f"{doing}: our user may not do that: {said}", hint=hint)
    if code == kafka._SSL:
        hint = "check security.protocol, ssl.ca.location and the listener's port"
        return KafkaUnreachableError(f"{doing}: TLS with {config.bootstrap} fails: {said}", hint=hint)
    silent = (kafka._TRANSPORT, kafka._RESOLVE, kafka._ALL_BROKERS_DOWN, kafka._TIMED_OUT, kafka._MSG_TIMED_OUT)
    if code in silent:
        hint = "check kafka.bootstrap, that the brokers run, and that security.protocol is that of the listener"
        return KafkaUnreachableError(f"{doing}: no answer from {config.bootstrap}: {said}", hint=hint)
    if code in (
        kafka.INVALID_CONFIG,
        kafka.INVALID_REPLICATION_FACTOR,
        kafka.INVALID_PARTITIONS,
        kafka.POLICY_VIOLATION,
    ):
        return InvalidInputError(f"{doing}: {said}", hint="change kafka.topics in the configuration file")
    if code in (kafka.MSG_SIZE_TOO_LARGE, kafka.RECORD_LIST_TOO_LARGE):
        return TooLargeError(f"{doing}: {said}", hint="headgate cluster check compares max.message.bytes")
    if code in (kafka.UNKNOWN_TOPIC_OR_PART, kafka._UNKNOWN_TOPIC, kafka._UNKNOWN_PARTITION):
        return UnavailableError(f"{doing}: {said}", hint="headgate cluster init makes the topics")
    return UnavailableError(f"{doing}: {said}")


def _short(text: str, characters_max: int = 500) -> str:
    return text if len(text) <= characters_max else text[:characters_max] + "..."
