#!/bin/bash
# debian13.sh TARGET...: runs make targets on today's stack in a Debian 13 root, on a system whose glibc is too old for it.
# debian13.sh python ARGUMENT...: runs the environment's Python there, which sees the folder SHARED under the same path.
#
# The root is .debian13 beside the Makefile; it is made once, by debootstrap. The checkout's files, without environments
# and results, are copied to /checkout in it, and ../shared, if there is one, to /shared. Needs the user root.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
root=$checkout/.debian13

if [ ! -e "$root/.ready" ]; then
    [ "$(id -u)" = 0 ] || { echo "error: a Debian 13 root can only be made by the user root; run this in a container" >&2; exit 1; }
    command -v debootstrap > /dev/null || { apt-get update -qq; apt-get install --yes -qq debootstrap > /dev/null; }
    rm -rf "$root"
    debootstrap --variant=minbase --include=ca-certificates,git,make,python3,python3-pip,python3-venv trixie "$root" > /dev/null
    touch "$root/.ready"
fi
cp -a /etc/ssl/certs/. "$root/etc/ssl/certs/"   # a machine may trust more than Debian does
cp /etc/resolv.conf /etc/hosts "$root/etc/"     # without hosts, gRPC does not find localhost

mkdir -p "$root/checkout"
find "$root/checkout" -mindepth 1 -maxdepth 1 ! -name '.venv' ! -name '.uv' ! -name '.matrix' -exec rm -rf {} +
cd "$checkout"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done \
    | tar --create --null --files-from - | tar --extract --directory "$root/checkout"
[ ! -d ../shared ] || { rm -rf "$root/shared"; cp -r ../shared "$root/shared"; }
if [ "$1" = python ]; then set -- .venv/bin/"$@"; else set -- make "$@"; fi
exec unshare --mount --pid --fork bash -c 'mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"
    [ -z "${SHARED:-}" ] || { mkdir -p "$0$SHARED"; mount --bind "$SHARED" "$0$SHARED"; }
    exec chroot "$0" env --chdir=/checkout HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin "$@"' "$root" "$@"
