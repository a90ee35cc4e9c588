#!/usr/bin/env bash
# Sees to it that the machine has the programs that are named: `scripts/ensure.sh jdk chromium ...`, or `tests` for all that
# tests run. What is missing is installed where that is allowed. Otherwise each is named in one line, with what needs it,
# and one command that installs all. Without the JDK nothing works; tests that lack a program are skipped, and fail in CI.
set -euo pipefail

cache="${XDG_CACHE_HOME:-$HOME/.cache}/headgate"
if [ -n "${JAVA_HOME:-}" ]; then PATH="$JAVA_HOME/bin:$PATH"; fi

has_jdk() { [ "$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')" -ge 17 ] 2>/dev/null; }
has_venv() { command -v uv >/dev/null || "${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null; }
has_promtool() { command -v promtool >/dev/null || [ -x "$cache/promtool" ]; }

# Takes promtool out of Debian's package into the user's cache: the package, installed, would start a Prometheus.
take_promtool() {
  local scratch
  scratch=$(mktemp -d) && chmod 755 "$scratch"
  if (cd "$scratch" && apt-get download -qq prometheus && dpkg-deb --extract prometheus_*.deb .) 2>/dev/null; then
    mkdir -p "$cache" && cp "$scratch/usr/bin/promtool" "$cache/promtool.new" && mv "$cache/promtool.new" "$cache/promtool"
  fi
  rm -rf "$scratch"
}

declare -A package=(
  [jdk]=openjdk-17-jdk-headless [venv]=python3-venv [chromium]=chromium [mvn]=maven [kubectl]=kubernetes-client
  [npm]=npm [curl]=curl [openssl]=openssl [promtool]=prometheus [go]=golang-go
)
declare -A purpose=(
  [jdk]="a JDK 17 or newer (javac): Spark runs on it" [venv]="Python's venv: the dependencies go into one"
  [chromium]="Chromium: tests of the console" [mvn]="Maven: it fetches Kafka, for tests of a deployment"
  [kubectl]="kubectl: tests of the API" [npm]="npm: tests of users run an OpenID provider" [curl]="curl: tests type pages' commands"
  [openssl]="openssl: tests of TLS" [promtool]="promtool: the test of the alerts" [go]="Go 1.24 or newer: a test runs grpcurl"
)
[ "$*" != tests ] || set -- chromium mvn kubectl npm curl openssl promtool go

lacks() {
  missing=()
  for one in "$@"; do
    if declare -F "has_$one" >/dev/null; then "has_$one" || missing+=("$one"); else command -v "$one" >/dev/null || missing+=("$one"); fi
  done
  [ ${#missing[@]} -gt 0 ]
}

lacks "$@" || exit 0
packages=("${missing[@]/#/}")
for index in "${!missing[@]}"; do packages[index]=${package[${missing[index]}]}; done
install="apt-get install -y --no-install-recommends"
if command -v apt-get >/dev/null; then
  if [ "$(id -u)" = 0 ]; then
    installed=("${packages[@]/prometheus/}")
    echo "setup: installing ${packages[*]} (a minute or two)"
    apt-get update -qq
    # shellcheck disable=SC2068
    DEBIAN_FRONTEND=noninteractive $install -qq ${installed[@]} >/dev/null || true
  fi
  case " ${missing[*]} " in *" promtool "*) take_promtool ;; esac
fi

lacks "$@" || exit 0
for one in "${missing[@]}"; do echo "missing: ${purpose[$one]}" >&2; done
for index in "${!missing[@]}"; do packages[index]=${package[${missing[index]}]}; done
echo "hint: sudo apt-get update && sudo $install ${packages[*]:0:${#missing[@]}}" >&2
case " ${missing[*]} " in *" jdk "* | *" venv "*) exit 1 ;; esac
[ "${CI:-}" != true ] || exit 1
