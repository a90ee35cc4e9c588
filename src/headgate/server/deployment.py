"""The deployment on Kafka that a server is part of: whether Kafka is as it must be before a start."""

from __future__ import annotations

import structlog

from headgate.errors import HeadgateError
from headgate.store.config import ClusterConfig
from headgate.store.kafka.topics import Admin

_log = structlog.get_logger(__name__)


class TopicsMisfitError(HeadgateError):
    """Topics in Kafka are not as the configuration says."""

    code = "topics-misfit"
    retriable = True  # `headgate cluster init` may be under way elsewhere


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
