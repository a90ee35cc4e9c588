"""The processes of a server: their roles, their names, and how many of each role the settings ask for.

A role that may have several processes numbers them from 0, also where there is one: `front-0`. The process of any other
role has the role's name. That name stands in commands, files under `run/`, `/readyz`, metrics, logs and traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.errors import NotFoundError
from headgate.settings import Settings


class Role(StrEnum):
    """What a process does; the name of its module."""

    FRONT = "front"
    DISPATCHER = "dispatcher"
    READER = "reader"
    MATCHER = "matcher"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class ServerPart:
    """One process of a server.

    Attributes:
        role: What it does.
        number: Which one of its role it is, from 0; None of a role that has one process.
    """

    role: Role
    number: int | None = None

    @property
    def name(self) -> str:
        """`front-0`, `reader`."""
        return self.role if self.number is None else f"{self.role}-{self.number}"

    @property
    def index(self) -> int:
        """The number, 0 without one."""
        return self.number or 0


class UnknownPartError(NotFoundError):
    """The server has no such process."""

    code = "unknown-part"


def of_server(settings: Settings) -> tuple[ServerPart, ...]:
    """The processes of a server, in the order in which they become ready."""
    return (
        ServerPart(Role.CONTROL),
        *(ServerPart(Role.FRONT, number) for number in range(settings.fronts)),
        *(ServerPart(Role.DISPATCHER, number) for number in range(settings.dispatchers)),
        ServerPart(Role.READER),
        ServerPart(Role.MATCHER),
    )


def front_of(partition: int, fronts: int) -> int:
    """The number of the front that writes a partition."""
    return partition % fronts


def of_role(settings: Settings, role: Role) -> tuple[ServerPart, ...]:
    """The processes of one role."""
    return tuple(part for part in of_server(settings) if part.role is role)


def named(settings: Settings, name: str) -> ServerPart:
    """The process of that name.

    Raises:
        UnknownPartError: The server has none.
    """
    known = of_server(settings)
    found = next((part for part in known if part.name == name), None)
    if found is None:
        raise UnknownPartError(f"unknown part {name!r}; parts are {', '.join(part.name for part in known)}")
    return found
