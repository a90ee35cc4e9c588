"""The deployment on Kafka that a server is part of, by its settings, and whether Kafka is as it must be."""

from __future__ import annotations

import structlog
from pydantic import ValidationError

from headgate.errors import HeadgateError, InvalidInputError
from headgate.settings import Settings
from headgate.store.config import ClusterConfig, KafkaConfig, QuotasConfig, SparkConfig, load
from headgate.store.kafka.admin import Admin

_OF_OWN_LOG = ("partitions", "segment_mb", "retain_hours", "retain_mb", "on_corrupt", "accept_lost")
"""Settings of a log that the server keeps itself."""
_log = structlog.get_logger(__name__)


class TopicsMisfitError(HeadgateError):
    """Topics in Kafka are not as the configuration says."""

    code = "topics-misfit"


def cluster_of(settings: Settings) -> ClusterConfig | None:
    """The deployment that the settings name: the file's, with what `kafka` and `spark` say instead. None for none.

    Raises:
        InvalidInputError: The file cannot be read or has a fault, or settings contradict each other.
    """
    if not settings.is_on_kafka:
        for name in ("spark", "advertise"):
            if getattr(settings, name):
                raise InvalidInputError(
                    f"--{name} is for a deployment on Kafka, and this server has none",
                    hint=f"name it by --config headgate.yaml or --kafka HOST:PORT, or leave --{name} out",
                )
        return None
    if extra := sorted(settings.model_fields_set & set(_OF_OWN_LOG)):
        raise InvalidInputError(
            f"--{extra[0].replace('_', '-')} is for a server that keeps its events itself, and this one has Kafka",
            hint="kafka.topics in headgate.yaml has the partitions and the retention of a deployment",
        )
    found = load(settings.config) if settings.config is not None else None
    kafka = found.kafka.model_dump() if found is not None else {}
    spark = found.spark.model_dump() if found is not None else {}
    try:
        return ClusterConfig(
            kafka=KafkaConfig.model_validate({**kafka, **({"bootstrap": settings.kafka} if settings.kafka else {})}),
            spark=SparkConfig.model_validate({**spark, **({"master": settings.spark} if settings.spark else {})}),
            quotas=found.quotas if found is not None else QuotasConfig(),
            sources=found.sources if found is not None else (),
        )
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidInputError(f"--kafka: {said}", hint="--kafka kafka-1.example.com:9092") from error


def check(cluster: ClusterConfig) -> None:
    """Asks Kafka whether it has the topics as they must be. What passes when a broker comes back is only told.

    Raises:
        TopicsMisfitError: A topic is missing, or differs.
        KafkaUnreachableError: No broker answers.
        KafkaDeniedError: We may not even look.
        InvalidInputError: The library is missing, or an option is none of its own.
    """
    found = Admin(cluster.kafka).check()
    for one in found:
        if one.passes:
            _log.warning("a topic takes nothing now", topic=one.topic, what=one.setting, now=one.found, hint=one.hint)
    lasting = [one for one in found if not one.passes]
    if lasting:
        first = lasting[0]
        what = f"{first.topic} is missing"
        if first.found:
            what = f"{first.setting} of {first.topic} is {first.found} and must be {first.wanted}"
        more = f", and {len(lasting) - 1} more" if len(lasting) > 1 else ""
        raise TopicsMisfitError(
            f"the topics in Kafka do not fit: {what}{more}",
            hint="headgate cluster check shows all of them; headgate cluster init makes topics that are missing",
        )
