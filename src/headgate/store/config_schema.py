"""The JSON Schema of `headgate.yaml`, from the types and the docstrings of its settings."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from pydantic import BaseModel

from headgate.settings import LISTED, Settings
from headgate.store.config import (
    ClusterConfig,
    KafkaConfig,
    QuotasConfig,
    RecordsConfig,
    SourceConfig,
    SparkConfig,
    TopicConfig,
    TopicsConfig,
)
from headgate.store.config_file import FILE_SETTINGS

Schema = dict[str, Any]
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE: Final = re.compile(r"^    (\w+): ((?:.+\n?(?:        .+\n?)*))", re.MULTILINE)
_MODELS: Final = (KafkaConfig, QuotasConfig, RecordsConfig, SourceConfig, SparkConfig, TopicConfig, TopicsConfig)


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """What each field of a model means, from the docstrings of the model and of those that it extends."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__[:-1]):
        text = (inspect.getdoc(each) or "").partition("Attributes:\n")[2]
        found |= {name: " ".join(meaning.split()) for name, meaning in _ATTRIBUTE.findall(text)}
    return found


def config_schema() -> Schema:
    """The schema of a whole file (draft 2020-12)."""
    of_settings: Schema = Settings.model_json_schema()
    of_deployment: Schema = ClusterConfig.model_json_schema()
    about_settings, about_deployment = meanings(Settings), meanings(ClusterConfig)
    properties: Schema = {}
    for name in FILE_SETTINGS:
        one = {key: value for key, value in of_settings["properties"][name].items() if key not in ("title", "format")}
        if name in LISTED:
            single: Schema = {"type": ["string", "integer"]}
            one = {"anyOf": [single, {"type": "array", "items": single}], **one}
            one.pop("type")
        properties[name] = {"description": about_settings[name], **one}
    for name, one in of_deployment["properties"].items():
        properties[name] = {"description": about_deployment[name], **_untitled(one)}
    definitions = {name: _untitled(one) for name, one in of_deployment["$defs"].items()}
    for model in _MODELS:
        about = meanings(model)
        for name, one in definitions[model.__name__]["properties"].items():
            one["description"] = about[name]
    return {
        "$schema": _DIALECT,
        "title": "headgate.yaml",
        "description": "Settings of a Headgate server, and the deployment on Kafka that it is part of.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _untitled(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Without the titles and docstrings that pydantic makes of our names, which say nothing new."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = isinstance(schema.get("title"), str)
    kept = {key: one for key, one in schema.items() if not (key == "title" and made)}
    if kept.get("type") == "object" and "properties" in kept:
        kept.pop("description", None)
    return {key: _untitled(one) for key, one in kept.items()}
