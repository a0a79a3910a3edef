#!/bin/sh
# Runs the tests of package cu for arm64 on another machine: cross-compiled Go, C libraries from a cross compiler, both
# under qemu-user. On Debian: apt-get install qemu-user gcc-aarch64-linux-gnu libc6-arm64-cross.
# Exits with 77 and a message if a requirement is missing. GO_TAGS are build tags; cudapurego tests the other call path.
set -eu
cd "$(dirname "$0")/.."

cc=aarch64-linux-gnu-gcc
sysroot=${AARCH64_SYSROOT:-/usr/aarch64-linux-gnu}
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if [ -z "$qemu" ] || ! command -v "$cc" >/dev/null || [ ! -d "$sysroot" ]; then
	echo "SKIP: needs qemu-aarch64, $cc and $sysroot" >&2
	exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for lib in tiny recorder; do
	"$cc" -shared -fPIC -O1 -o "$work/$lib.so" "testdata/$lib.c"
done
GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go test -tags "${GO_TAGS:-}" -c -o "$work/cu.test" .
CU_TEST_LIBRARIES=$work "$qemu" -L "$sysroot" "$work/cu.test" -test.v "$@"
