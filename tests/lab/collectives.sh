# SPDX-License-Identifier: MIT
# Sourced after parts.sh: the collectives on SoftRoCE, with nothing said about the device.
# shellcheck shell=bash disable=SC2154 # from parts.sh

# What the device must be: RoCEv2 by its IPv4 address, with the largest MTU that the link carries.
devices() {
    "$sstar" devices
    "$sstar" devices | awk '
        $1 == "rxe0" && $2 == "softroce" { chosen = $NF == "yes"; mtu = $(NF - 1) }
        $1 == "rxe0" && $3 == "RoCEv2" && $4 ~ /^::ffff:10\.9\./ { gid = $NF == "yes" }
        END { if (!chosen) print "rxe0 was not chosen"
              if (mtu != 4096) print "its active MTU is not 4096 but " mtu
              if (!gid) print "its IPv4 GID would not be used"
              exit !(chosen && gid && mtu == 4096) }'
}

# The choices of a mixture-of-experts router for 8 sequences of tokens: made by `sstar routing`, or cut from
# a file of real ones.
routing_file() {
    local tokens=$((full ? 200 : 15))
    if [ -n "${SSTAR_TEST_ROUTING-}" ]; then
        gzip -dcf "$SSTAR_TEST_ROUTING" | awk -F, -v n=$tokens '/^#/ || $2 < n' >/tmp/routing.csv
    else
        "$sstar" routing --tokens $tokens >/tmp/routing.csv
    fi
}

# On an emulated machine that others use the sizes may well lie on no line: then fit has to say so.
fit() {
    local rc=0
    timeout -k 5 90 lab-ranks "$1" "$sstar" fit --quick || rc=$?
    [ "$LAB_HOST" -ne 0 ] && return "$rc"
    [ "$rc" -eq 0 ] || grep -q 'sstar fit: no S\*:' "$log" || return "$rc"
    on_softroce
}

collectives() { # CONNECT RANKS_OF_A_HOST
    local connect=$1 n=$2 text="$(($2 * LAB_HOSTS)) ranks, $LAB_HOSTS host(s), $1" sizes="-b 8 -e 64K -f 16 -n 3 -w 1"
    [ "$full" -eq 0 ] || sizes="-b 8 -e 1M -n 5 -w 1"
    # Ranks of one host meet over the device only as nodes of their own.
    [ "$LAB_HOSTS" -eq 2 ] || export SSTAR_RANKS_PER_NODE=$((n / 2))
    # shellcheck disable=SC2086
    part "sstar allreduce, ring and hierarchical, $text" ranks 90 "$n" allreduce --connect "$connect" \
        --algorithm ring,hierarchical $sizes
    part "sstar alltoall, all strategies, $text" ranks 90 "$n" alltoall --connect "$connect" \
        --strategy all --routing /tmp/routing.csv
    unset SSTAR_RANKS_PER_NODE
}
