"""The configuration file `headgate.yaml`: settings of a server, a deployment on Kafka, their lines; its JSON Schema.

Names of the first level are settings (`settings.py: Settings`), beside the sections of a deployment
(`backend/config.py: ClusterConfig`). `kafka.bootstrap` and `spark.master` are what the file says of the settings
`kafka` and `spark`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headgate.backend.config import (
    ClusterConfig,
    KafkaConfig,
    QuotasConfig,
    RecordsConfig,
    SourceConfig,
    SparkConfig,
    TopicConfig,
    TopicsConfig,
    read_bounded,
)
from headgate.settings import LISTED, Settings
from headgate_api.errors import InvalidInputError
from headgate_api.limits import CLUSTER_FILE_BYTES_MAX
from headgate_api.yaml_text import YamlLimits, YamlTextError, documents

Location = tuple[str | int, ...]
"""A place in a file: names of objects, numbers of items."""

SECTIONS: Final = tuple(ClusterConfig.model_fields)
"""Names of the first level that are about a deployment on Kafka."""
FILE_SETTINGS: Final = tuple(name for name in Settings.model_fields if name not in {"config", *SECTIONS})
"""The settings that a file may have under their own names."""
_KNOWN: Final = (*FILE_SETTINGS, *SECTIONS)
OF_SECTIONS: Final = {"kafka": "bootstrap", "spark": "master"}
"""Settings that stand in a section of their name, and what they are called there."""
_YAML: Final = YamlLimits(depth=8, values=10_000, merges=False)
_REFERENCE: Final = "docs/reference/settings.md and docs/reference/cluster.md have every name"
_UNKNOWN: Final = "extra_forbidden"
_ALIKE_MIN: Final = 0.6


@dataclass(frozen=True, slots=True)
class SettingFault:
    """What is wrong with a setting; `where` is an option, a variable, or FILE:LINE: and the name in it."""

    where: str
    message: str
    hint: str = ""
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class SettingsError(InvalidInputError):
    """Settings cannot be used; at least one fault says which, and why."""

    code = "settings"

    def __init__(self, *faults: SettingFault) -> None:
        hint = next((one.hint for one in faults if one.hint), "")
        super().__init__("; ".join(map(str, faults)), hint=hint)
        self.faults = faults


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says: `settings` by name, as Settings takes them, and the sections of a deployment, not checked.

    `lines` says on which line a name or an item stands, by its place; `unknown` are names that are none.
    """

    path: Path
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    sections: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    lines: Mapping[Location, int] = field(default_factory=lambda: MappingProxyType({}))
    unknown: tuple[SettingFault, ...] = ()

    def fault(self, place: Location, message: str, hint: str = "") -> SettingFault:
        """A fault at a place, or where what should hold it stands."""
        line = next((self.lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in self.lines), 1)
        return SettingFault(f"{self.path}:{line}: {'.'.join(map(str, place))}", message, hint, line)


def read(path: Path) -> ConfigFile:
    """Reads a file; an empty one says nothing. InvalidInputError when it cannot be read, or is no YAML object."""
    body = read_bounded(path, CLUSTER_FILE_BYTES_MAX, "the configuration file")
    try:
        found = list(documents(body, _YAML))
    except YamlTextError as error:
        raise InvalidInputError(f"{path}: {error.message}", hint=error.hint) from error
    if not found:
        return ConfigFile(path)
    if len(found) != 1 or not isinstance(found[0], dict):
        raise InvalidInputError(f"{path} must hold one YAML object", hint="write a line such as `listen: 0.0.0.0:8080`")
    nodes = yaml.compose_all(body.decode("utf-8-sig"), Loader=yaml.CSafeLoader)
    # Of several documents the others are empty, and an empty one has no names.
    content, lines = found[0], {place: line for node in nodes for place, line in _lines(node, ())}
    settings: dict[str, object] = {name: _setting(name, content[name]) for name in content if name in FILE_SETTINGS}
    for section, name in OF_SECTIONS.items():
        if isinstance(inner := content.get(section), dict) and inner.get(name) is not None:
            settings[section] = inner[name]
    sections = {name: content[name] for name in SECTIONS if content.get(name) is not None}
    plain = ConfigFile(path, settings, sections, lines)
    unknown = (
        plain.fault((name,), "there is no such setting", _alike(str(name), _KNOWN))
        for name in content
        if name not in _KNOWN
    )
    return replace(plain, unknown=tuple(unknown))


def _setting(name: str, value: object) -> object:
    """A setting of several values may be written as a list, or as one number; nothing else is text."""
    values = value if isinstance(value, list) else [value]
    if name in LISTED and all(type(one) in (str, int) for one in values):
        return ", ".join(map(str, values))
    return value


def _lines(node: yaml.Node | None, place: Location) -> Iterator[tuple[Location, int]]:
    """Where each name and item stands; the text has few, and aliases are counted as what they stand for."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            yield inner, key.start_mark.line + 1
            yield from _lines(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield (*place, number), value.start_mark.line + 1
            yield from _lines(value, (*place, number))


def load(path: Path) -> ClusterConfig:
    """The deployment on Kafka that a file describes.

    Raises InvalidInputError, SettingsError for names and values; all places are named, no value is shown.
    """
    file = read(path)
    faults = list(file.unknown)
    try:
        found = ClusterConfig.model_validate(dict(file.sections))
    except ValidationError as error:
        faults += deployment_faults(file, error)
    if faults:
        raise SettingsError(*faults)
    return found


def deployment_faults(file: ConfigFile, error: ValidationError) -> list[SettingFault]:
    """What is wrong with the sections of a file."""
    found = []
    for one in error.errors():
        place = one["loc"]
        if one["type"] == _UNKNOWN:
            hint = _alike(str(place[-1]), _names_at(ClusterConfig, place[:-1]))
            found.append(file.fault(place, "there is no such name", hint))
        else:
            found.append(file.fault(place, said(one["msg"]), _REFERENCE))
    return found


def said(message: str) -> str:
    """What pydantic says, without its own label for errors of ours."""
    return message.removeprefix("Value error, ")


def _alike(name: str, known: tuple[str, ...]) -> str:
    """A hint that names what was perhaps meant."""
    near = get_close_matches(name.replace("-", "_").lower(), known, 1, _ALIKE_MIN)
    return f"did you mean {near[0]}?" if near else _REFERENCE


def _names_at(model: type[BaseModel], place: Location) -> tuple[str, ...]:
    """The names that are allowed at a place; none where anything is, or nothing."""
    for step in place:
        if isinstance(step, int):
            continue
        one = model.model_fields.get(step)
        inner = None if one is None else _model_of(one)
        if inner is None:
            return ()
        model = inner
    return tuple(model.model_fields)


def _model_of(one: FieldInfo) -> type[BaseModel] | None:
    """The model that a field holds, also in a list."""
    waiting: list[Any] = [one.annotation]
    while waiting:
        found = waiting.pop()
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
        waiting += get_args(found)
    return None


# --- schema ---------------------------------------------------------------------------------------
# The JSON Schema, from the types and the docstrings of the settings.

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
