#!/usr/bin/env bash
# Is there a promtool for the test of the alerts? If not: take it out of Debian's package into the user's cache. Nothing is
# installed, as the package would start a Prometheus.
set -euo pipefail

cached="${XDG_CACHE_HOME:-$HOME/.cache}/headgate/promtool"
if command -v promtool >/dev/null || [ -x "$cached" ]; then exit 0; fi

if command -v apt-get >/dev/null; then
  echo "setup: taking promtool out of Debian's package prometheus"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  chmod 755 "$scratch"
  cd "$scratch"
  if ! apt-get download -qq prometheus 2>/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && apt-get download -qq prometheus || true
  fi
  if [ -n "$(find . -name 'prometheus_*.deb')" ]; then
    dpkg-deb --extract prometheus_*.deb .
    mkdir -p "$(dirname "$cached")"
    cp usr/bin/promtool "$cached.new"
    mv "$cached.new" "$cached"
    exit 0
  fi
fi
echo "error: the test of the alerts needs promtool" >&2
echo "hint: apt-get install prometheus, or put promtool of Prometheus 2.42 or newer on the PATH" >&2
exit 1
