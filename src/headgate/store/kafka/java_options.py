"""Options of librdkafka as those of Kafka's Java client, which Spark's source and our sink use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.errors import InvalidInputError
from headgate.store.config import KafkaConfig, resolved

_SAME: Final = ("security.protocol", "client.id", "client.rack")
_PEM: Final[Mapping[str, str]] = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.key.password": "ssl.key.password",
}
_SASL: Final = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
_MODULES: Final[Mapping[str, str]] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_options(config: KafkaConfig) -> dict[str, str]:
    """How a Java client reaches the brokers, and who it is; it may hold secrets.

    Raises:
        InvalidInputError: An option is none that both clients have, or a secret's file cannot be read.
    """
    given = resolved(config.options)
    known = {*_SAME, *_PEM, *_SASL}
    for name in given:
        if name not in known:
            raise InvalidInputError(
                f"kafka.options: {name} has no counterpart in Kafka's Java client, which the matcher uses",
                hint=f"the matcher takes {', '.join(sorted(known))}",
            )
    made = {"bootstrap.servers": config.bootstrap}
    made |= {name: given[name] for name in _SAME if name in given}
    made |= {java: given[name] for name, java in _PEM.items() if name in given}
    if "ssl.truststore.location" in made or "ssl.truststore.certificates" in made:
        made["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.certificate.chain" in made:
        made["ssl.keystore.type"] = "PEM"
    return made | _sasl(given)


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms"))
    if mechanism is None:
        return {}
    if mechanism not in _MODULES:
        raise InvalidInputError(f"kafka.options: sasl.mechanism must be one of {', '.join(_MODULES)}")
    name, password = (_quoted(given.get(f"sasl.{part}", "")) for part in ("username", "password"))
    login = f"{_MODULES[mechanism]} required username={name} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
