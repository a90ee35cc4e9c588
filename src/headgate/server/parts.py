"""The processes of a server: their roles, their names, their modules, and how many of each the settings ask for.

A role that may have several processes numbers them from 0, also where there is one: `front-0`. These names stand in
commands, files under `run/`, `/readyz`, metrics, logs and traces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.settings import Settings
from headgate_api.errors import InvalidInputError, NotFoundError


class Role(StrEnum):
    """What a process does; the name of its module."""

    FRONT = "front"
    DISPATCHER = "dispatcher"
    READER = "reader"
    MATCHER = "matcher"
    CONTROL = "control"
    OBJECTS = "objects"
    """On Kafka, in a server without the role control: keeps the cache of the objects."""
    SOURCE = "source"
    """On Kafka: admits the events of topics that other producers write."""


_OWN_ROLES: Final = (Role.CONTROL, Role.FRONT, Role.MATCHER, Role.DISPATCHER, Role.READER)
ROLES: Final = (*_OWN_ROLES, Role.SOURCE)
"""Those that `--role` takes."""
MATCHER_VARIABLE: Final = "HEADGATE_CHILD_MATCHER"
"""Names another matcher, for servers of tests on files: most do without Spark."""


@dataclass(frozen=True, slots=True)
class ServerPart:
    """One process of a server; `number` is which one of its role, from 0, None of a role that has one process."""

    role: Role
    number: int | None = None

    @property
    def name(self) -> str:
        return self.role if self.number is None else f"{self.role}-{self.number}"

    @property
    def index(self) -> int:
        return self.number or 0


class UnknownPartError(NotFoundError):
    """The server has no such process."""

    code = "unknown-part"


def roles_of(settings: Settings) -> frozenset[Role]:
    """The roles of a server; InvalidInputError when `role` names something else, or the server has no Kafka."""
    named = [name.strip() for name in settings.role.split(",") if name.strip()]
    if not settings.is_on_kafka:
        if named:
            raise InvalidInputError(
                "--role is for a deployment on Kafka, and this server has none",
                hint="name it with --config headgate.yaml or --kafka HOST:PORT, or leave --role out",
            )
        return frozenset(_OWN_ROLES)
    unknown = next((name for name in named if name not in ROLES), None)
    if unknown is not None:
        raise InvalidInputError(f"--role: {unknown!r} is no role", hint=f"--role takes any of {','.join(ROLES)}")
    asked = [role for role in ROLES if role in named or not named]
    return frozenset(asked) if Role.CONTROL in asked else frozenset({Role.OBJECTS, *asked})


def of_server(settings: Settings) -> tuple[ServerPart, ...]:
    """The processes of a server, in the order in which they become ready; raises as `roles_of` does."""
    roles = roles_of(settings)
    every = (
        ServerPart(Role.CONTROL),
        ServerPart(Role.OBJECTS),
        *(ServerPart(Role.FRONT, number) for number in range(settings.fronts)),
        *(ServerPart(Role.DISPATCHER, number) for number in range(settings.dispatchers)),
        ServerPart(Role.READER),
        ServerPart(Role.SOURCE),
        ServerPart(Role.MATCHER),
    )
    return tuple(part for part in every if part.role in roles)


def module_of(settings: Settings, part: ServerPart) -> str:
    """The module that has `run` of a process. Nothing else decides whether it works on Kafka."""
    if settings.is_on_kafka:
        return f"headgate.server.processes.kafka.{part.role}"
    own = f"headgate.server.processes.{part.role}"
    return os.environ.get(MATCHER_VARIABLE, own) if part.role is Role.MATCHER else own


def front_of(partition: int, fronts: int) -> int:
    """The number of the front that writes a partition."""
    return partition % fronts


def of_role(settings: Settings, role: Role) -> tuple[ServerPart, ...]:
    """The processes of one role."""
    return tuple(part for part in of_server(settings) if part.role is role)


def named(settings: Settings, name: str) -> ServerPart:
    """The process of that name; UnknownPartError when the server has none."""
    known = of_server(settings)
    found = next((part for part in known if part.name == name), None)
    if found is None:
        raise UnknownPartError(f"unknown part {name!r}; parts are {', '.join(part.name for part in known)}")
    return found
