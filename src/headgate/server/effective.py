"""The effective settings of a server: option > environment > file > default, each with where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource

from headgate.backend import config_file
from headgate.backend.config import ClusterConfig
from headgate.backend.config_file import ConfigFile, Location, SettingFault, SettingsError
from headgate.settings import MASKED, Settings
from headgate_api.errors import InvalidInputError

_OF_OWN_LOG: Final = ("partitions", "segment_mb", "retain_hours", "retain_mb", "on_corrupt", "accept_lost")
"""Settings of a log that the server keeps itself."""
_NOT_ASKED: Final = "default_factory_not_called"
"""Of a default that is made of another value, which has a fault of its own."""
_HIDDEN: Final = "(not shown)"
_OPTIONS_HINT: Final = "headgate serve --help shows the options"


class SettingOrigin(StrEnum):
    """Where a setting came from; the first one wins."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting for people: `name` as in the file (`kafka.topics.events.partitions`), `value` never a secret.

    `where` is the option, the variable or FILE:LINE, empty for a default.
    """

    name: str
    value: object
    origin: SettingOrigin
    where: str


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """What a server goes by; `cluster` is the deployment on Kafka that it is part of, None for none."""

    settings: Settings
    cluster: ClusterConfig | None
    origins: Mapping[str, SettingOrigin]
    file: ConfigFile | None

    def where(self, name: str) -> str:
        """Where a setting stands: an option, a variable, or FILE:LINE and its name."""
        return _where(name, self.origins[name], self.file)

    def shown(self) -> Iterator[ShownSetting]:
        values = self.settings.model_dump(mode="json")
        for name, origin in self.origins.items():
            value = values[name]
            if name in MASKED and value:
                value = _HIDDEN
            where = "" if origin is SettingOrigin.DEFAULT else self.where(name).removesuffix(f": {name}")
            yield ShownSetting(name, value, origin, where)
        if self.cluster is not None:
            for place, value in _flat(self.cluster):
                name = ".".join(map(str, place))
                if place in map(_place, config_file.OF_SECTIONS):
                    continue
                if self.file is not None and place in self.file.lines:
                    yield ShownSetting(name, value, SettingOrigin.FILE, f"{self.file.path}:{self.file.lines[place]}")
                else:
                    yield ShownSetting(name, value, SettingOrigin.DEFAULT, "")


def effective(options: Mapping[str, object]) -> EffectiveSettings:
    """The settings of a server. `options` of a command have None for one that was not given; `config` names the file.

    SettingsError has every fault. InvalidInputError: the file is unreadable, or settings contradict each other.
    """
    given = {name: value for name, value in options.items() if value is not None}
    environment: dict[str, Any] = EnvSettingsSource(Settings)()
    path = given.get("config", environment.get("config"))
    file = config_file.read(Path(str(path))) if path else None
    layers = (
        (SettingOrigin.OPTION, given),
        (SettingOrigin.ENVIRONMENT, environment),
        (SettingOrigin.FILE, {} if file is None else file.settings),
    )
    origins = {
        name: next((origin for origin, layer in layers if name in layer), SettingOrigin.DEFAULT)
        for name in Settings.model_fields
    }
    values = {name: value for _, layer in reversed(layers) for name, value in layer.items()}
    faults = [] if file is None else list(file.unknown)
    settings = None
    try:
        settings = Settings(**values)
    except ValidationError as error:
        faults += _faults(error, origins, file)
    cluster, more = _deployment(values, origins, file)
    faults += [one for one in more if one.where not in {known.where for known in faults}]
    if faults or settings is None:
        raise SettingsError(*faults)
    found = EffectiveSettings(settings, cluster, origins, file)
    _check_deployment(found)
    return found


def _deployment(
    values: Mapping[str, Any], origins: Mapping[str, SettingOrigin], file: ConfigFile | None
) -> tuple[ClusterConfig | None, list[SettingFault]]:
    """What the file says of a deployment, with what `kafka` and `spark` say instead; and what is wrong with it."""
    sections: dict[str, Any] = {} if file is None else dict(file.sections)
    if not sections and not values.get("kafka"):
        return None, []
    for section, name in config_file.OF_SECTIONS.items():
        if values.get(section) and isinstance(inner := sections.get(section, {}), dict):
            sections[section] = {**inner, name: values[section]}
    try:
        known = {name: sections[name] for name in config_file.SECTIONS if name in sections}
        return ClusterConfig.model_validate(known), []
    except ValidationError as error:
        own = [one for one in error.errors() if _is_replaced(one["loc"], origins)]
        if own:
            hint = "--kafka kafka-1.example.com:9092"
            return None, [SettingFault(_where("kafka", origins["kafka"], file), config_file.said(own[0]["msg"]), hint)]
        return None, config_file.deployment_faults(file or ConfigFile(Path("headgate.yaml")), error)


def _is_replaced(place: Location, origins: Mapping[str, SettingOrigin]) -> bool:
    own = (SettingOrigin.OPTION, SettingOrigin.ENVIRONMENT)
    return any(place == _place(name) and origins[name] in own for name in config_file.OF_SECTIONS)


def _check_deployment(found: EffectiveSettings) -> None:
    """Refuses settings of one kind of server for the other kind (InvalidInputError)."""
    settings = found.settings
    if not settings.is_on_kafka:
        for name in ("spark", "advertise"):
            if getattr(settings, name):
                raise InvalidInputError(
                    f"{found.where(name)} is for a deployment on Kafka, and this server has none",
                    hint=f"name it by `kafka` in headgate.yaml or by --kafka HOST:PORT, or leave {name} out",
                )
        return
    if extra := sorted(settings.model_fields_set & set(_OF_OWN_LOG)):
        raise InvalidInputError(
            f"{found.where(extra[0])} is for a server that keeps its events itself, and this one has Kafka",
            hint="kafka.topics in headgate.yaml has the partitions and the retention of a deployment",
        )


def _faults(
    error: ValidationError, origins: Mapping[str, SettingOrigin], file: ConfigFile | None
) -> Iterator[SettingFault]:
    for one in error.errors():
        if one["type"] == _NOT_ASKED:
            continue
        name = str(one["loc"][0])
        if origins[name] is SettingOrigin.FILE and file is not None:
            yield file.fault(_place(name), config_file.said(one["msg"]), "docs/reference/settings.md has every setting")
        else:
            yield SettingFault(_where(name, origins[name], file), config_file.said(one["msg"]), _OPTIONS_HINT)


def _place(name: str) -> Location:
    return (name, config_file.OF_SECTIONS[name]) if name in config_file.OF_SECTIONS else (name,)


def _where(name: str, origin: SettingOrigin, file: ConfigFile | None) -> str:
    if origin is SettingOrigin.ENVIRONMENT:
        return f"HEADGATE_{name.upper()}"
    if origin is SettingOrigin.FILE and file is not None:
        return file.fault(_place(name), "").where
    return f"--{name.replace('_', '-')}"


def _flat(value: object, place: Location = ()) -> Iterator[tuple[Location, object]]:
    """Every value of a model that holds no others, with its place."""
    inner: dict[int | str, object] = {}
    if isinstance(value, BaseModel):
        inner = {name: getattr(value, name) for name in type(value).model_fields}
    elif isinstance(value, tuple):
        inner = dict(enumerate(value))
    elif isinstance(value, dict):
        inner = {str(name): one for name, one in value.items()}
    for name, one in inner.items():
        yield from _flat(one, (*place, name))
    if not inner and not isinstance(value, BaseModel):
        yield place, list(value) if isinstance(value, tuple) else value
