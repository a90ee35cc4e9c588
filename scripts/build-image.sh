#!/usr/bin/env bash
# Builds the image of the Containerfile by buildah, as root, where there is no daemon and no registry of images: its base
# is made of Debian's packages, as that of the registry is. `scripts/build-image.sh NAME`
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-headgate}
release=bookworm
base=localhost/debian:$release
for program in buildah mmdebstrap; do
  command -v $program >/dev/null && continue
  echo "error: $program is not installed" >&2
  echo "hint: sudo apt-get install -y --no-install-recommends buildah mmdebstrap" >&2
  exit 1
done
export BUILDAH_ISOLATION=chroot  # STORAGE_DRIVER=vfs, too, where overlays cannot be mounted

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  # With the machine's own certificates, for whoever reaches registries of packages through a proxy.
  mkdir -p /usr/local/share/ca-certificates
  mmdebstrap --quiet --variant=minbase --customize-hook="copy-in /usr/local/share/ca-certificates /usr/local/share" \
    $release "$root/base.tar"
  made=$(buildah from scratch)
  buildah add --quiet "$made" "$root/base.tar" / >/dev/null
  buildah commit --quiet "$made" "$base" >/dev/null
  buildah rm "$made" >/dev/null
fi
buildah build --format docker --pull-never --build-arg "BASE=$base" -f Containerfile -t "$name" .
echo "built $name"
