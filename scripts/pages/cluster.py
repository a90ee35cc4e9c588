"""The page of the configuration file of a deployment on Kafka, from the models that read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from headgate.backend import config
from headgate.backend.config_file import meanings
from headgate.backend.kafka.topics import wanted_topics
from scripts.pages.cell import row

HEAD: Final = """# Configuration of a deployment on Kafka

<!-- Written by `make pages` from src/headgate/backend/config.py: edit that. -->

The sections of [`headgate.yaml`](../howto/configure.md) that describe a deployment; [`headgate cluster`](cli.md#headgate-cluster) reads no others. [Settings](settings.md) of a server may stand beside them. [Run on Kafka](../howto/kafka.md) has an example, and says what works today. A name that is not here is refused, and so is a secret: give `sasl.password_file`, the path of a file, in place of `sasl.password`; one line break at its end is not part of it.
"""
OPTIONS: Final = """## options

`kafka.options` takes the options of librdkafka, `spark.options` those of Spark, and `options` of a topic those of Kafka's topics. Options on which guarantees rest are Headgate's own and are refused:
"""
_PLACES: Final = (
    ("kafka", config.KafkaConfig),
    ("kafka.topics", config.TopicsConfig),
    ("kafka.topics.events, outbox, refused", config.RecordsConfig),
    ("kafka.topics.progress, runs, objects, changelog, reports", config.TopicConfig),
    ("spark", config.SparkConfig),
    ("quotas", config.QuotasConfig),
    ("sources, a list", config.SourceConfig),
)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for place in _PLACES for line in _section(*place)), *_options(), *_topics(), ""])


def _section(title: str, model: type[BaseModel]) -> Iterator[str]:
    about = meanings(model)
    yield f"## {title}\n"
    yield row("name", "default", "meaning")
    yield "|---|---|---|"
    for name, field in model.model_fields.items():
        default = field.default
        shown = "required" if field.is_required() else ""
        if default not in (None, PydanticUndefined) and not isinstance(default, BaseModel):
            shown = f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
        yield row(f"`{name}`", shown, about[name])
    yield ""


def _options() -> Iterator[str]:
    yield OPTIONS
    yield row("where", "refused")
    yield "|---|---|"
    refused = (
        ("kafka.options", config.CLIENT_OPTIONS),
        ("options of a topic", config.TOPIC_OPTIONS),
        ("spark.options", config.SPARK_OPTIONS),
    )
    for where, names in refused:
        yield row(where, ", ".join(f"`{name}`" for name in sorted(names)))
    yield ""


def _topics() -> Iterator[str]:
    yield "## Topics as `init` makes them by default\n"
    yield row("topic", "partitions", "copies", "settings")
    yield "|---|---|---|---|"
    for topic in wanted_topics(config.KafkaConfig(bootstrap="kafka:9092")):
        settings = ", ".join(f"`{name}={value}`" for name, value in topic.settings.items())
        yield row(f"`{topic.name}`", str(topic.partitions), str(topic.replication), settings)
