"""The page of commands, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from typer.main import get_group

from headgate_cli.lazy import LazyGroup
from headgate_cli.main import app
from scripts.pages.cell import row

HEAD: Final = """# Commands

<!-- Written by `make pages` from src/headgate_cli and src/headgate/cli: edit that. -->

Data goes to standard output; messages, one `error:` and one `hint:` line, go to standard error. Every command takes `--help`.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | not done: the message says why |
| 2 | wrong usage: an unknown option, a missing argument |

A command with another meaning says so.
"""

EXITS: Final[Mapping[str, str]] = {
    "serve": "0 after an orderly stop (SIGTERM, Ctrl-C); 78 when a restart does not help, because somebody must change something: a wrong setting or file, no Java, a data directory of a newer version, an address that this user may not use; 1 when the problem may go away, such as an address in use.",
    "config check": "1 when a server would refuse the settings.",
    "backup create": "1 when no backup was made: the message says why.",
    "backup verify": "1 when the backup is damaged or incomplete.",
    "restore": "1 when nothing was restored: the directory is then empty.",
    "upgrade": "0 when a server of this version can start; 1 when it would refuse.",
    "apply": "1 when one of the objects was refused; the others were applied.",
    "delete": "1 when one of the objects could not be deleted; the others were deleted.",
    "conformance": "1 when a check failed.",
    "filter test": "2 when the filter or an event is invalid. An event that does not match is not an error.",
    "filter explain": "2 when the filter is invalid.",
    "filter backtest": "2 when an option or the data directory is invalid.",
    "filter convert": "2 when the filter is invalid.",
    "log verify": "1 when there is damage, 2 when the files cannot be read.",
    "log stats": "2 when the files cannot be read.",
    "log chunks": "2 when the files cannot be read, or the filter is invalid.",
    "log dump": "2 when the files cannot be read.",
    "cluster init": "1 when a setting is wrong, 2 when the file is invalid or the cluster does not answer.",
    "cluster check": "1 when a setting is wrong, 2 when the file is invalid or the cluster does not answer.",
}
"""Exit statuses of commands beside the common ones, by command."""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(get_group(app), "headgate", 2)])


def commands() -> dict[str, Any]:
    """Every command without commands of its own, by its words after `headgate`."""
    return dict(_leaves(get_group(app), ""))


def _leaves(group: Any, words: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own click
    for name, command in _members(group):
        if hasattr(command, "commands"):
            yield from _leaves(command, f"{words}{name} ")
        yield f"{words}{name}", command


def _members(group: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    for name in group.commands:
        yield name, group.loaded(name) if isinstance(group, LazyGroup) else group.commands[name]


def _sections(group: Any, words: str, level: int) -> Iterator[str]:  # noqa: ANN401
    for name, command in _members(group):
        yield from _command(f"{words} {name}", command, level)
        if hasattr(command, "commands"):
            yield from _sections(command, f"{words} {name}", level + 1)


def _command(words: str, command: Any, level: int) -> Iterator[str]:  # noqa: ANN401
    yield f"{'#' * level} {words}\n"
    text, examples = _help(command.help or "")
    yield text + "\n"
    if examples:
        yield "```sh"
        yield from examples
        yield "```\n"
    shown = [parameter for parameter in command.params if parameter.name != "help" and not parameter.hidden]
    if shown:
        yield row("argument or option", "default", "meaning")
        yield "|---|---|---|"
        yield from (_parameter(parameter) for parameter in shown)
        yield ""
    exits = EXITS.get(words.removeprefix("headgate "))
    if exits:
        yield f"Exit status: {exits}\n"


def _help(text: str) -> tuple[str, list[str]]:
    """What a docstring says, and its examples."""
    paragraphs = [part.strip("\b\n") for part in inspect.cleandoc(text).split("\n\n")]
    examples, said = [], []
    for paragraph in paragraphs:
        if re.match(r"Examples?:", paragraph):
            examples += [line.strip() for line in re.sub(r"^Examples?:", "", paragraph).splitlines() if line.strip()]
        elif not paragraph.startswith("Exit status:"):
            said.append(" ".join(paragraph.split()))
    return "\n\n".join(said), examples


def _parameter(parameter: Any) -> str:  # noqa: ANN401
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [(parameter.metavar or parameter.name).upper()]
    default = parameter.default
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    elif isinstance(default, bool):
        default = parameter.opts[0] if default else (*parameter.secondary_opts, None)[0]
    needed = "required" if parameter.required else "" if default in (None, "", [], ()) else f"`{default}`"
    variable = f" Environment: `{parameter.envvar}`." if parameter.envvar else ""
    return row(", ".join(f"`{name}`" for name in names), needed, (parameter.help or "") + variable)
