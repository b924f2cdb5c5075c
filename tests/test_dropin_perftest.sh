#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# perftest, unmodified, on softnic: every test with the options that it has.
set -euo pipefail
# shellcheck source=tests/dropin.sh
. "$(dirname "$0")/dropin.sh"
need ib_write_lat ib_write_bw ib_read_lat ib_read_bw ib_send_lat ib_send_bw ib_atomic_lat ib_atomic_bw

# each PROGRAM OPTIONS...: once with each of the options, -F since the processor's clock is of no
# concern here.
each() {
    local program=$1 options
    shift
    for options in "$@"; do
        # shellcheck disable=SC2086
        pair "$program" -F -n 32 $options
        # The line with the results is there, or it ended well without having run.
        awk '/^ *#bytes/ { at = NR } at && NR > at && $1 ~ /^[0-9]+$/ { found = 1 } END { exit !found }' "$work/client" ||
            fail "$program $options gives no result"
    done
}

# Under a sanitizer, which sees what is wrong on a path and not how often it is taken, the options that take most paths.
if [ -n "${SOFTNIC_TEST_PRELOAD:-}" ]; then
    each ib_write_lat "" "-c UC"
    each ib_write_bw "-q 4 -b -l 16" "-I 64 -s 64"
    each ib_read_lat -e
    each ib_read_bw "-q 4 -b -l 16"
    each ib_send_lat "-I 64 -s 64" "-c UD"
    each ib_send_bw "-q 4 -b -l 16" "--use-srq -q 4" "-c UC -q 4" "-c UD -q 4 -b -I 64 -s 64"
    each ib_atomic_lat -e
    softnic_options=(--check-verbs)
    each ib_atomic_bw "-q 4 -b -l 16"
    finish
fi

# After each size perftest measures the processor's clock for 0.2 s, so that -a costs 5 s a side:
# two tests have it here, and all with SOFTNIC_TEST_LONG set.
each ib_write_bw "-a -n 5"
each ib_send_lat "-a -n 5"
if [ -n "${SOFTNIC_TEST_LONG:-}" ]; then
    for program in ib_write_lat ib_read_lat ib_read_bw ib_send_bw; do
        each "$program" "-a -n 5"
    done
fi
each ib_write_lat "" "-I 64 -s 64" "-c UC" --use_old_post_send
each ib_write_bw "" "-q 4" -b "-l 16" "-I 64 -s 64" "-q 4 -b -l 16" "-c UC -q 4" --use_old_post_send
each ib_read_lat "" -e
each ib_read_bw "" "-q 4" -b -e "-l 16" "-q 4 -b -l 16"
each ib_send_lat "" -e "-I 64 -s 64" --use-srq "-c UC" "-c UD" --use_old_post_send
each ib_send_bw "" "-q 4" -b -e "-l 16" "-I 64 -s 64" "-q 4 -b -l 16" --use-srq "--use-srq -q 4" \
    "-c UC -q 4" "-c UD" "-c UD -q 4 -b -I 64 -s 64"
each ib_atomic_lat "" -e "-A CMP_AND_SWAP"
each ib_atomic_bw "" "-q 4" -b -e "-l 16" "-A CMP_AND_SWAP" "-q 4 -b -l 16"

# Right use is not reported, though receives and READs share buffers and all requests have one wr_id.
softnic_options=(--check-verbs)
each ib_send_bw "-q 4 -b -l 16" "--use-srq -q 4"
each ib_write_bw "-n 320 -Q 5"
each ib_read_bw "-q 4 -b -l 16"
finish
