#!/usr/bin/env bash
# Makes .venv with the locked dependencies and this package in it (editable). Needs the network only
# when requirements/dev.txt changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "error: Headgate needs Python 3.11 or newer, $("$python" --version) is what '$python' starts" >&2
  echo "hint: PYTHON=/path/to/python3.11 make setup" >&2
  exit 1
}

PYTHON=$python scripts/ensure.sh jdk venv

# Another lock is another environment: a package that goes takes files along that it shared with one that stays.
if [ -d .venv ] && ! cmp -s requirements/dev.txt .venv/.ready; then rm -rf .venv; fi
echo "setup: virtual environment .venv (about a minute the first time: pyspark is 400 MB)"
if command -v uv >/dev/null; then
  uv venv -q --allow-existing --python "$python" .venv
  uv=uv
else
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps \
    -r <(awk '/^uv==/{p=1} p{print} p&&!/\\$/{exit}' requirements/dev.txt)
  uv=.venv/bin/uv
fi
export VIRTUAL_ENV=$PWD/.venv
"$uv" pip sync -q --require-hashes requirements/dev.txt
"$uv" pip install -q --no-deps --no-build-isolation --offline -e .
# --reinstall: else uv takes a wheel that it has built of an older C file.
if ! command -v cc >/dev/null ||
  ! "$uv" pip install -q --no-deps --no-build-isolation --offline --reinstall ./packaging/native; then
  echo "setup: without headgate-native, which needs a C compiler (cc): batches of events take a fifth more time"
fi
cp requirements/dev.txt .venv/.ready
