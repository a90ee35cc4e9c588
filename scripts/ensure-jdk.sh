#!/usr/bin/env bash
# Is there a JDK 17 or newer (javac, not only java)? If not: install it where that is allowed, else say how.
set -euo pipefail

jdk_major() { javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p'; }

if [ -n "${JAVA_HOME:-}" ]; then PATH="$JAVA_HOME/bin:$PATH"; fi
major=$(jdk_major || true)
[ "${major:-0}" -ge 17 ] && exit 0

install="apt-get install -y --no-install-recommends openjdk-17-jdk-headless"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "setup: installing a JDK ($install)"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null && exit 0
fi
echo "error: Headgate's Spark connector needs a JDK 17 or newer (javac), found: ${major:-none}" >&2
echo "hint: sudo apt-get update && sudo $install" >&2
exit 1
