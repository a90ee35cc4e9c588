"""The build hook of both distributions: headgate-broker has the server, and depends on headgate-client."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SERVER: Final = "headgate-broker"
CLIENT: Final = "headgate-client"
JAR: Final = "src/headgate/match/jars/headgate-connector.jar"


class DistributionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts into a wheel what no list of hatchling's can say, and ends a build whose result could not work."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a target is built.

        Args:
            version: "editable" or "standard".
            build_data: What else the target shall contain.
        """
        if self.metadata.name == CLIENT:
            self._check_client(version)
        elif version != "editable":  # an editable package has all of src, and reads the jar where it will lie
            self._check_connector()
            if self.target_name == "wheel":
                build_data["dependencies"].append(f"{CLIENT}=={self.metadata.version}")

    def _check_connector(self) -> None:
        """Without the connector an installed server could not start."""
        if not (Path(self.root) / JAR).is_file():
            self._end(f"{JAR} is missing, and a package without it cannot run", "make setup builds it")

    def _check_client(self, version: str) -> None:
        if self.target_name != "wheel":
            self._end(
                f"{CLIENT} has no sdist: the one of {SERVER} holds all files", "uv build --wheel packaging/client"
            )
        if version == "editable":
            self._end(f"{CLIENT} cannot be editable: {SERVER} as an editable package has it", "pip install -e .")

    def _end(self, message: str, hint: str) -> None:
        self.app.abort(f"error: {message}\nhint: {hint}")
