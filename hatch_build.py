"""The build hook of all distributions: headgate-broker has the server, and depends on headgate-client."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SERVER: Final = "headgate-broker"
CLIENT: Final = "headgate-client"
NATIVE: Final = "headgate-native"
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
            self._check_wheel(version, "pip install -e .")
        elif self.metadata.name == NATIVE:
            self._check_wheel(version, "pip install packaging/native")
            self._compile(build_data)
        elif version != "editable":  # an editable package has all of src, and reads the jar where it will lie
            self._check_connector()
            if self.target_name == "wheel":
                build_data["dependencies"].append(f"{CLIENT}=={self.metadata.version}")

    def _check_connector(self) -> None:
        """Without the connector an installed server could not start."""
        if not (Path(self.root) / JAR).is_file():
            self._end(f"{JAR} is missing, and a package without it cannot run", "make setup builds it")

    def _check_wheel(self, version: str, instead: str) -> None:
        name = self.metadata.name
        if self.target_name != "wheel":
            hint = f"uv build --wheel packaging/{name.removeprefix('headgate-')}"
            self._end(f"{name} has no sdist: the one of {SERVER} holds all files", hint)
        if version == "editable":
            self._end(f"{name} cannot be editable", instead)

    def _compile(self, build_data: dict[str, Any]) -> None:
        """Any Python 3 loads what is compiled, by ctypes, on this platform."""
        library = Path(self.root) / "build" / "plain_json.so"
        library.parent.mkdir(exist_ok=True)
        hint = f"sudo apt-get install build-essential, or go without {NATIVE}"
        if not (compiler := shutil.which("cc")):
            self._end(f"{NATIVE} needs a C compiler, and there is no program cc", hint)
        command = [compiler, "-std=c11", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, "plain_json.c"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            self._end(f"cc failed: {' '.join(done.stderr.split())[:500]}", hint)
        build_data["force_include"][str(library)] = f"headgate_native/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def _end(self, message: str, hint: str) -> None:
        self.app.abort(f"error: {message}\nhint: {hint}")
