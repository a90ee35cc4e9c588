"""The peers' programs: their sources and pinned versions lie in `programs/`, what is built of them in a cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"
JAVA = ("java", "-Xms1g", "-Xmx4g")
NATIVE = "activemq-artemis-native-*.jar"


@dataclass(frozen=True)
class Peer:
    """Another program.

    Attributes:
        name: As an option names it.
        title: Its name and version for people.
        tools: What must be on the PATH to build it.
        build: Makes a command of its sources, and a folder to build in.
    """

    name: str
    title: str
    tools: tuple[str, ...]
    build: Callable[[Path, Path], list[str]]

    def command(self, cache: Path) -> list[str]:
        """Builds it; ends the program where a tool is missing or the build fails."""
        if missing := [tool for tool in self.tools if shutil.which(tool) is None]:
            sys.exit(f"error: {self.title} needs {', '.join(missing)}: install it, or leave {self.name} out of --only")
        folder = cache / self.name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return self.build(PROGRAMS / self.name, folder)
        except subprocess.CalledProcessError as error:
            sys.exit(f"error: {self.title} was not built: {error}\n{error.stdout[-2_000:]}")


def _run(*command: str | Path, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _cargo(source: Path, folder: Path) -> list[str]:
    _run("cargo", "build", "--release", "--locked", "--target-dir", folder, cwd=source)
    return [str(folder / "release" / f"{source.name}-peer")]


def _go(source: Path, folder: Path) -> list[str]:
    _run("go", "build", "-mod=readonly", "-o", folder / "peer", ".", cwd=source)
    return [str(folder / "peer")]


def _java(source: Path, folder: Path) -> list[str]:
    """Jars of the versions that the pom pins; they are fetched again when it changes."""
    jars, pom = folder / "jars", folder / "pom.xml"
    text = (source / "pom.xml").read_text()
    if not pom.exists() or pom.read_text() != text:
        shutil.rmtree(jars, ignore_errors=True)
        maven = ("mvn", "-q", "-B", "-f", source / "pom.xml", "dependency:copy-dependencies")
        _run(*maven, f"-DoutputDirectory={jars}", cwd=folder)
        pom.write_text(text)
    (program,) = source.glob("*.java")
    classes = folder / "classes"
    _run("javac", "-cp", f"{jars}/*", "-d", classes, program, cwd=folder)
    for jar in jars.glob(NATIVE):  # the JVM loads no library out of a jar
        with zipfile.ZipFile(jar) as opened:
            opened.extractall(folder / "native", [name for name in opened.namelist() if name.endswith("64.so")])
    native = [f"-Djava.library.path={found.parent}" for found in folder.glob("native/lib/*/*64.so")]
    return [*JAVA, *native, "-cp", f"{classes}:{jars}/*", program.stem]


MATCHERS = (
    Peer("quamina", "quamina 0.7.0 (Rust)", ("cargo",), _cargo),
    Peer("ruler", "event-ruler 2.1.0 (Java)", ("mvn", "java", "javac"), _java),
)
SYSTEMS = (
    Peer("artemis", "ActiveMQ Artemis 2.56.0", ("mvn", "java", "javac"), _java),
    Peer("nats", "NATS JetStream 2.15.2", ("go",), _go),
)
