#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What cmake --install puts under a prefix of its own serves: pkg-config finds it there, the examples of the docs are
# built with it and run under sstar run, softnic-run finds its library.
set -euo pipefail
build=$(dirname "$1")
examples=$(cd "$(dirname "$0")/../docs/examples" && pwd)
if ! command -v pkg-config >/dev/null || ! command -v cc >/dev/null; then
    echo "skipped: there is no pkg-config or no cc"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    printf 'test_install: %s\n' "$*" >&2
    exit 1
}

cmake --install "$build" --prefix "$work/in stall" >"$work/log" 2>&1 || fail "$(tail -5 "$work/log")"
mv "$work/in stall" "$work/installed" # it can be moved, too
PKG_CONFIG_PATH=$(dirname "$(find "$work/installed" -name sstar.pc)")
export PKG_CONFIG_PATH
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
export LD_LIBRARY_PATH
for example in allreduce overlap aggregator; do
    # shellcheck disable=SC2046
    cc "$examples/$example.c" -o "$work/$example" $(pkg-config --cflags --libs sstar) || fail "$example is not built"
    timeout 60 "$work/installed/bin/sstar" run -n 4 --ranks-per-node 2 -- "$work/$example" >"$work/log" 2>&1 ||
        fail "$example: $(cat "$work/log")"
    [ -s "$work/log" ] || fail "$example says nothing"
done
timeout 60 env SOFTNIC_PORT=t$$ "$work/installed/bin/softnic-run" true || fail "softnic-run does not find its library"
for page in "$work"/installed/share/man/man1/*.1; do
    [ -e "$page" ] || break # no scdoc
    name=$(basename "$page" .1)
    [ -e "$work/installed/bin/$name" ] || [ -e "$work/installed/bin/${name%%-*}" ] || fail "a man page of $name, which is not installed"
done
echo "installed: all as it should be"
