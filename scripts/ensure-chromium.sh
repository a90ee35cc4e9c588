#!/usr/bin/env bash
# Is there a Chromium for the tests of the console? If not: install it where that is allowed, else say how.
set -euo pipefail

command -v chromium >/dev/null && exit 0

install="apt-get install -y --no-install-recommends chromium"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "setup: installing a browser for the console's tests ($install)"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null && exit 0
fi
echo "error: the console's tests need Chromium" >&2
echo "hint: sudo apt-get update && sudo $install" >&2
exit 1
