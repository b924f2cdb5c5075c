# SPDX-License-Identifier: MIT
# Sourced by tools/demo and tools/test: installs what is missing, builds a preset.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() {
    printf '\n== %s\n' "$*"
}

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# shellcheck disable=SC2034 # used by those that source this file
packages_build="gcc libc6-dev cmake ninja-build pkg-config libibverbs-dev librdmacm-dev
    ibverbs-providers liburing-dev libjansson-dev libxxhash-dev zlib1g-dev libhwloc-dev libcmocka-dev scdoc"
# shellcheck disable=SC2034
packages_demo="gnuplot-nox jq"
# shellcheck disable=SC2034
packages_test="tshark clang clang-format libclang-rt-14-dev shellcheck jq gnuplot-nox iproute2 procps binutils
    ibverbs-utils perftest rdmacm-utils python3-pyverbs ucx-utils openmpi-bin libopenmpi-dev
    mpich libmpich-dev"

# install_packages NAME...: only what is not there yet, so that it costs nothing the second time.
install_packages() {
    local name missing=() sudo=()
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null || die "apt-get is not here; install by hand: ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "run as root, or install by hand: ${missing[*]}"
        sudo=(sudo)
    fi
    say "installing: ${missing[*]}"
    "${sudo[@]}" apt-get update -q || die "apt-get update failed; is there a network?"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        "${missing[@]}" >/dev/null || die "apt-get install failed for: ${missing[*]}"
}

# build PRESET [TARGET]: configure and build into build/PRESET; what the compilers say is shown if it fails.
build() {
    local log timeout=600
    say "building: $*"
    [ "${SSTAR_TEST_FULL:-0}" != 1 ] || timeout=14400 # of a suite; the long ones are for the night
    log=$(mktemp)
    (cd "$root" && cmake --preset "$1" -Wno-dev -DSSTAR_TEST_TIMEOUT=$timeout && cmake --build --preset "$1" ${2:+--target "$2"} -- -k 0) >"$log" 2>&1 || {
        cat "$log"
        rm -f "$log"
        die "building preset $1 failed"
    }
    rm -f "$log"
}
