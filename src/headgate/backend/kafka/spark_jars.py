"""The jars that Spark needs beside its own to read and write Kafka; they are in no wheel.

They come from one place: the folder that HEADGATE_SPARK_KAFKA_JARS names, or else what Maven fetches once into the
user's cache. `python -m headgate.backend.kafka.spark_jars` prints the folder, and fetches it where it is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError


def cache_directory() -> Path:
    """Where fetched jars are kept: `headgate` below the user's cache directory (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "headgate"


def jars(pom: Path) -> Path:
    """The folder with every jar that a pom names or needs; fetched at the first call, by one process at a time.

    A changed pom is another folder. Maven compares the checksum of everything that it fetches. Raises UnavailableError
    when there is no Maven, or it cannot fetch them.
    """
    cache = cache_directory()
    folder = cache / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{pom.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as made:
                _fetch(pom, Path(made))
                (Path(made) / "jars").rename(folder)
    return folder


def _fetch(pom: Path, scratch: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("Maven is not installed", hint="apt-get install maven")
    shutil.copy(pom, scratch / "pom.xml")
    done = subprocess.run(
        [
            *(maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", scratch / "pom.xml"),
            *("dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'jars'}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(f"Maven cannot fetch what {pom.name} names:\n{done.stdout.strip()[-2_000:]}")


FOLDER_VARIABLE: Final = "HEADGATE_SPARK_KAFKA_JARS"
POM: Final = Path(__file__).with_name("spark-jars.xml")
_NEEDED: Final = (
    "spark-sql-kafka-0-10_2.13-",
    "spark-token-provider-kafka-0-10_2.13-",
    "kafka-clients-",
    "commons-pool2-",
)


def spark_jars(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The jars, for `spark.jars`; every executor must be able to read them or be sent them. Raises as `jars`.

    InvalidInputError when the folder that the environment names lacks one of them.
    """
    given = environment.get(FOLDER_VARIABLE)
    folder = Path(given) if given else jars(POM)
    found = sorted(folder.glob("*.jar"))
    for name in _NEEDED:
        if not any(jar.name.startswith(name) for jar in found):
            raise InvalidInputError(
                f"{folder} has no jar {name}*.jar",
                hint=f"copy into it what {POM.name} names, or unset {FOLDER_VARIABLE}",
            )
    return [jar.absolute() for jar in found]


if __name__ == "__main__":
    try:
        print(spark_jars()[0].parent)  # what the build reads
    except HeadgateError as error:
        sys.exit(f"error: {error.message}\nhint: {error.hint}")
