#!/usr/bin/env bash
# With pytest 9.2, `--dist loadgroup` of pytest-xdist 3.8 splits groups and says nothing.
#
# xdist writes a test's group to the end of the attribute `_nodeid` of the test, where its scheduler looks for it. In
# pytest 9.2 the name of a test is made of another attribute, so nobody sees what was written: each test is handed out
# alone, as by `--dist load`. Nothing warns. A fixture of the session that a group was to share is made in every process.
# Known as issue 1386 of pytest-dev/pytest-xdist, open in November 2026.
#
# Seen: four tests of one group ran in 1 process with pytest 8.4.2, and in 2 with pytest 9.2.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >test_group.py <<'PY'
import os, time
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(4))
def test_of_a_group(number):
    time.sleep(0.5)
    with open("processes", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\n")
PY

processes() {
  python3 -m venv "venv-$1"
  "venv-$1/bin/pip" install -q --disable-pip-version-check "pytest==$1" pytest-xdist==3.8.0 execnet==2.1.2
  rm -f processes
  "venv-$1/bin/python" -m pytest -q -p no:cacheprovider -n 2 --dist loadgroup >/dev/null
  sort -u processes | wc -l
}

before=$(processes 8.4.2) now=$(processes 9.2.0)
echo "pytest 8.4.2: a group of four tests ran in $before process, pytest 9.2.0: in $now"
[ "$before" = 1 ] && [ "$now" = 2 ]
