"""What a Java client of Kafka is told, from the options of librdkafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.match_run import java_options
from headgate_api.errors import InvalidInputError


def config(**options: str) -> KafkaConfig:
    dotted = {name.replace("__", "."): value for name, value in options.items()}
    return KafkaConfig(bootstrap="a:1,b:2", options=dotted)


def test_who_we_are_and_whom_we_trust(tmp_path: Path) -> None:
    (tmp_path / "password").write_text('a"b\\c\n')
    made = java_options(
        config(
            security__protocol="SASL_SSL",
            sasl__mechanism="SCRAM-SHA-512",
            sasl__username="headgate",
            sasl__password_file=str(tmp_path / "password"),
            ssl__ca__location="/ca.pem",
        )
    )
    assert made == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "PEM",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="headgate" password="a\\"b\\\\c";',
    }


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"queue__buffering__max__ms": "5"}, "queue.buffering.max.ms has no counterpart"),
        ({"sasl__mechanism": "GSSAPI"}, "sasl.mechanism must be one of PLAIN, "),
    ],
)
def test_what_java_does_not_have_is_refused(options: dict[str, str], fault: str) -> None:
    with pytest.raises(InvalidInputError, match=fault):
        java_options(config(**options))
