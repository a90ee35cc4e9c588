"""The build hook of sdist and wheel: without the Spark connector's jar there is no package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JAR: Final = "src/headgate/match/jars/headgate-connector.jar"


class ConnectorHook(BuildHookInterface):  # type: ignore[type-arg]
    """Ends a build that would leave the connector out; an installed server could not start."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a target is built.

        Args:
            version: "editable" or "standard"; an editable package reads the jar where it will lie.
            build_data: What else the target shall contain.
        """
        if version != "editable" and not (Path(self.root) / JAR).is_file():
            self.app.abort(f"error: {JAR} is missing, and a package without it cannot run\nhint: make setup builds it")
