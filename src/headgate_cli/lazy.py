"""Groups whose commands are imported when they run; a table says without that what help lists."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from headgate_api import DISTRIBUTION
from headgate_api.errors import HeadgateError, NotFoundError

if TYPE_CHECKING:
    from typer._click import Command, Context

CommandTable = Mapping[str, tuple[str, str]]
"""By name, in the order of help: a module, and in it a function or a typer app; and what help says.

Those of the package `headgate` come with headgate-broker."""

_PANEL: Final = f"Commands that need the package {DISTRIBUTION}"


class MissingPackageError(NotFoundError):
    """What a command needs is in the package headgate-broker; here is only headgate-client."""

    code = "missing-package"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs the package {DISTRIBUTION}", hint=f"pip install {DISTRIBUTION}")


def module_of(name: str, what: str) -> ModuleType:
    """A module, for the command `what`; raises MissingPackageError where it is not installed."""
    if not _is_installed(name):
        raise MissingPackageError(what)
    return import_module(name)


class LazyGroup(TyperGroup):
    """The commands of a table. To import them all takes a second of CPU, to import one a tenth."""

    table: ClassVar[CommandTable] = {}

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - typer's
        super().__init__(**attributes)
        self.commands = {name: self._listed(name) for name in self.table}

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The command that the arguments name, and what is left of them."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and self.loaded(listed.name or "", ctx.command_path), rest

    def loaded(self, name: str, above: str = "headgate") -> Command:
        """The command `name`, of which `above` are the words before it; raises MissingPackageError."""
        module, _, attribute = self.table[name][0].partition(":")
        found = getattr(module_of(module, f"{above} {name}"), attribute)
        # Here, because help and --version need nothing of it.
        from headgate_api.event.json_text import allow_deep_json
        from headgate_cli.access import with_access_options

        allow_deep_json()
        holder = typer.Typer(rich_markup_mode=self.rich_markup_mode)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name)
        else:
            holder.command(name)(found)
        return with_access_options(get_group(holder).commands[name])

    def invoke(self, ctx: Context) -> object:
        """Runs the command; an error of ours becomes one line and a hint on stderr, exit status 1."""
        try:
            return super().invoke(ctx)
        except HeadgateError as error:
            from headgate_cli.client import fail  # here, because --version needs nothing of it

            fail(str(error), hint=error.hint)

    def _listed(self, name: str) -> Command:
        place, said = self.table[name]
        panel = None if _is_installed(place.partition(":")[0]) else _PANEL
        return TyperCommand(name, help=said, rich_markup_mode=self.rich_markup_mode, rich_help_panel=panel)


def group_of(commands: CommandTable) -> type[LazyGroup]:
    """The class of a group with these commands, for `typer.Typer(cls=...)`."""
    return type("Commands", (LazyGroup,), {"table": commands})


def _is_installed(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None
