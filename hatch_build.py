"""The build hook of both distributions: headgate-broker has the server, and depends on headgate-client.

One list says which files are headgate-client's: what the wheel of headgate-broker excludes, in pyproject.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE: Final = "src"
SERVER: Final = "headgate-broker"
CLIENT: Final = "headgate-client"
JAR: Final = "src/headgate/match/jars/headgate-connector.jar"


def client_files(repository: Path) -> Iterator[Path]:
    """The files of headgate-client, seen from the repository.

    Raises:
        FileNotFoundError: A line of the list names nothing.
    """
    with (repository / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    for line in listed:
        below = f"{line[1:]}**/*" if line.endswith("/") else line[1:]
        found = [path for path in repository.glob(below) if path.is_file() and path.parent.name != "__pycache__"]
        if not found:
            raise FileNotFoundError(f"pyproject.toml: {line} names no file")
        yield from (path.relative_to(repository) for path in found)


class DistributionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts into a wheel what no list of hatchling's can say, and ends a build whose result could not work."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a target is built.

        Args:
            version: "editable" or "standard".
            build_data: What else the target shall contain.
        """
        if self.metadata.name == CLIENT:
            self._add_client(version, build_data)
        elif version != "editable":  # an editable package has all of src, and reads the jar where it will lie
            self._check_connector()
            if self.target_name == "wheel":
                build_data["dependencies"].append(f"{CLIENT}=={self.metadata.version}")

    def _check_connector(self) -> None:
        """Without the connector an installed server could not start."""
        if not (Path(self.root) / JAR).is_file():
            self._end(f"{JAR} is missing, and a package without it cannot run", "make setup builds it")

    def _add_client(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            self._end(
                f"{CLIENT} has no sdist: the one of {SERVER} holds all files", "uv build --wheel packaging/client"
            )
        if version == "editable":
            self._end(f"{CLIENT} cannot be editable: {SERVER} as an editable package has it", "pip install -e .")
        repository = Path(self.root).parents[1]
        for path in client_files(repository):
            build_data["force_include"][str(repository / path)] = str(path.relative_to(SOURCE))

    def _end(self, message: str, hint: str) -> None:
        self.app.abort(f"error: {message}\nhint: {hint}")
