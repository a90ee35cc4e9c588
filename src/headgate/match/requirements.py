"""What Spark needs to start: a Java runtime and the connector's jar. Nothing here imports PySpark."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Final

from headgate.match.errors import SparkMissingError
from headgate_api.errors import UnavailableError

JAVA_MAJOR_MIN: Final = 17
_INSTALL: Final = {
    "debian": "apt-get install default-jre-headless",
    "ubuntu": "apt-get install openjdk-21-jre-headless",
    "fedora": "dnf install java-21-openjdk-headless",
    "rhel": "dnf install java-21-openjdk-headless",
    "suse": "zypper install java-21-openjdk-headless",
    "alpine": "apk add openjdk21-jre-headless",
    "arch": "pacman -S jre21-openjdk-headless",
}
"""The command of a system that installs a Java runtime, by its ID or ID_LIKE of /etc/os-release."""
_JAVA_TIMEOUT_S: Final = 30


def connector_jar() -> Path:
    """The data source's jar inside this package; SparkMissingError when it was never built."""
    jar = Path(str(resources.files("headgate.match") / "jars" / "headgate-connector.jar"))
    if not jar.is_file():
        raise SparkMissingError(
            f"the Spark connector is not built: {jar} is missing", hint="make setup (or scripts/build-connector.sh)"
        )
    return jar


def install_java() -> str:
    """What to do where there is no Java for Spark, with the command of this system where it is known."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    names = (system.get("ID", ""), *system.get("ID_LIKE", "").split())
    command = next((_INSTALL[name] for name in names if name in _INSTALL), "")
    how = f"install a Java {JAVA_MAJOR_MIN}+ runtime" + (f" ({command})" if command else "")
    return f"{how}, or set JAVA_HOME to one"


def check_java() -> int:
    """The major version of the Java that Spark can use.

    Raises SparkMissingError when there is none or one too old, UnavailableError when it does not print its version now.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        where = f"under JAVA_HOME={home}" if home else "on the PATH"
        raise SparkMissingError(f"no Java {where}", hint=install_java())
    try:
        printed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{java} cannot be run now: {error}", hint=install_java()) from error
    version = re.search(r'version "(?:1\.)?(\d+)', printed)
    if version is None or int(version[1]) < JAVA_MAJOR_MIN:
        found = version[1] if version else "an unknown version"
        raise SparkMissingError(f"{java} is Java {found}, Spark needs {JAVA_MAJOR_MIN} or newer", hint=install_java())
    return int(version[1])
