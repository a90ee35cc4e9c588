#!/usr/bin/env bash
# Sees to it that the machine has the programs that are named, such as `scripts/ensure.sh jdk chromium`. What is missing is
# installed where that is allowed. Else one line each says what it is for, and one command installs them all. Nothing
# works without the JDK and venv; tests that lack another program are skipped, and fail where CI=true.
set -euo pipefail

declare -A package=(
  [jdk]=openjdk-17-jdk-headless [venv]=python3-venv [chromium]=chromium [libatomic]=libatomic1 [mvn]=maven
  [kubectl]=kubernetes-client [npm]=npm [curl]=curl [openssl]=openssl [promtool]=prometheus
  [go]=golang-go [systemd-nspawn]=systemd-container [cc]=build-essential
)
declare -A purpose=(
  [jdk]="a JDK 17 or newer (javac): Spark runs on it" [venv]="Python's venv: the dependencies go into one"
  [chromium]="Chromium, for the console" [libatomic]="libatomic, which Playwright's own Node.js loads"
  [mvn]="Maven, which fetches Kafka" [kubectl]="kubectl 1.27 or newer, for the API"
  [npm]="npm and Node.js 20 or newer, for an OpenID provider"
  [curl]="curl, for the commands of pages" [openssl]="openssl, for TLS" [promtool]="promtool, for the alerts"
  [go]="Go 1.24 or newer, for grpcurl and kn" [systemd-nspawn]="systemd-nspawn, which runs the unit in a container"
  [cc]="a C compiler (cc), for headgate-native"
)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/headgate"
if [ -n "${JAVA_HOME:-}" ]; then PATH="$JAVA_HOME/bin:$PATH"; fi

has() {
  case $1 in
    jdk) [ "$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')" -ge 17 ] 2>/dev/null ;;
    venv) command -v uv >/dev/null || "${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null ;;
    libatomic) PATH="$PATH:/sbin" ldconfig -p | grep "libatomic\.so\.1" >/dev/null ;;
    kubectl) [ "$(kubectl version --client 2>/dev/null | sed -n 's/.*v1\.\([0-9]*\)\..*/\1/p' | head -1)" -ge 27 ] 2>/dev/null ;;
    npm) command -v npm >/dev/null && [ "$(node --version | sed 's/^v\([0-9]*\).*/\1/')" -ge 20 ] 2>/dev/null ;;
    promtool) command -v promtool >/dev/null || [ -x "$cache/promtool" ] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# Out of Debian's package into the user's cache: once installed, the package would start a Prometheus.
take_promtool() (
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  chmod 755 "$scratch"
  cd "$scratch"
  apt-get -o APT::Sandbox::User=root download -qq prometheus && dpkg-deb --extract prometheus_*.deb .
  mkdir -p "$cache"
  cp usr/bin/promtool "$cache/promtool.new" && mv "$cache/promtool.new" "$cache/promtool"
)

missing=()
for program; do has "$program" || missing+=("$program"); done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "setup: installing ${missing[*]} (a minute or two)"
  apt-get update -qq || true
  for program in "${missing[@]}"; do
    if [ "$program" = promtool ]; then take_promtool || true; continue; fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq "${package[$program]}" >/dev/null || true
  done
fi

packages=() needed=false lacking=false
for program in "${missing[@]}"; do
  has "$program" && continue
  echo "missing: ${purpose[$program]}" >&2
  case $program in jdk | venv) needed=true ;; esac
  if [ "$(dpkg-query -W -f '${Status}' "${package[$program]}" 2>/dev/null)" = "install ok installed" ]; then
    echo "hint: Debian's package ${package[$program]} is an older one here" >&2
  else
    packages+=("${package[$program]}")
  fi
  lacking=true
done
[ "$lacking" = true ] || exit 0
[ ${#packages[@]} -eq 0 ] || echo "hint: sudo apt-get update && sudo apt-get install -y --no-install-recommends ${packages[*]}" >&2
[ "$needed" = false ] && [ "${CI:-}" != true ]
