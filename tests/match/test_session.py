"""Spark starts where it can, names the reason where it cannot, and ends with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headgate.match import requirements, session
from headgate.match.errors import SparkMissingError
from tests.match.events import append, event, writing
from tests.match.fakes import FakeDispatcher
from tests.support import eventually


def fake_java(home: Path, version: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(("version", "major"), [("11.0.2", "11"), ("1.8.0_392", "8")])
def test_an_old_java_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: str
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissingError, match=f"is Java {major}, Spark needs 17") as failure:
        requirements.check_java()
    assert "JAVA_HOME" in failure.value.hint


@pytest.mark.parametrize("version", ["17.0.1", "21", "25-ea"])
def test_a_new_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    requirements.check_java()


def test_no_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissingError, match="no Java under JAVA_HOME"):
        requirements.check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissingError, match="no Java on the PATH"):
        requirements.check_java()


def test_a_missing_jar_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.resources, "files", lambda _: tmp_path)
    with pytest.raises(SparkMissingError) as failure:
        requirements.connector_jar()
    assert "make setup" in failure.value.hint


@pytest.mark.spark
def test_the_session_is_as_the_matcher_needs_it(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.sql.caseSensitive") == "true"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == f"local[{session.task_slots(2)}]"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    handler = signal.getsignal(signal.SIGINT)
    assert getattr(handler, "__module__", "") != SparkContext.__module__, "Ctrl-C is not PySpark's"
    mapped = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
    assert str(session.CLASS_ARCHIVE) in mapped, "make setup writes it, and the JVM has taken it"


@pytest.mark.spark
def test_garbage_is_collected_beside_the_matches(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    young, whole = sorted(beans, key=lambda bean: str(bean.getName()), reverse=True)
    begun, stops = young.getCollectionCount(), whole.getCollectionCount()
    session.collect_garbage(spark).join()
    assert young.getCollectionCount() > begun
    assert whole.getCollectionCount() == stops, "it has stopped everything"


OWNER = """
import sys, time
from pathlib import Path
from headgate.log.directory import LogDirectory
from headgate.match.driver_link import LinkAddress
from headgate.outbox.link_format import LinkEndpoint
from headgate.match.query import start_run
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session
from tests.match.test_run import every_event
scratch, log, port, token = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
spark = start_session(jar=connector_jar(), threads=3, scratch=scratch, heap_mib=512)
link = LinkAddress((LinkEndpoint("127.0.0.1", port),), token)
log = LogDirectory(log, "stop")
start_run(spark, every_event, log=log, start={0: 0}, run=1, generation=1, link=link, scratch=scratch)
print(spark.sparkContext._gateway.proc.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return True


@pytest.mark.spark
@pytest.mark.slow
def test_the_jvm_ends_when_its_process_is_killed(tmp_path: Path) -> None:
    """SIGKILL in the midst of a run: nobody is left to say goodbye."""
    with FakeDispatcher() as dispatcher, writing(tmp_path / "log") as writer:
        append(writer, [event(1)])
        command = [sys.executable, "-c", OWNER, str(tmp_path / "spark"), str(tmp_path / "log")]
        command += [str(dispatcher.endpoint.port), dispatcher.address.token.hex()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            try:
                assert owner.stdout is not None
                jvm = int(owner.stdout.readline())
                connection = dispatcher.of(run=1)
                dispatcher.wait(lambda: connection.passed == 1)
                assert not gone(jvm)
            finally:
                owner.send_signal(signal.SIGKILL)
        dispatcher.wait(lambda: connection.closed)
        eventually(lambda: gone(jvm), f"the JVM {jvm} outlives its process")
