#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What Wireshark makes of a capture: of an AllReduce, and of what the conformance suite sends.
set -u
sstar=$1
build=$(dirname "$sstar")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}
command -v tshark >/dev/null || {
    echo "skipped: tshark is not installed" >&2
    exit 77
}

# Without guesses at what the payload may be, which is numbers.
guesses=(-o infiniband.identify_payload:FALSE)
for protocol in rpcordma smb_direct iser nvme-rdma lnet smc fcoib infiniband_sdp infiniband.eoib; do
    guesses+=(--disable-protocol "$protocol")
done
shark() { # FILE ARGUMENT...
    local file=$1
    shift
    tshark "${guesses[@]}" -r "$file" "$@" 2>/dev/null
}
# Every frame is RoCEv2 with an ICRC, and Wireshark finds fault with none. (tshark 4.0 shows the ICRC
# and does not check it; test_capture does.) Leaves opcode and error code of each in $work/frames.
clean() { # FILE
    local found
    shark "$1" -o ip.check_checksum:TRUE -o udp.check_checksum:TRUE -T fields -e infiniband.bth.opcode \
        -e infiniband.aeth.syndrome.error_code -e infiniband.invariant.crc -e _ws.malformed -e ip.checksum.status \
        -e udp.checksum.status -e _ws.expert.severity -e frame.number >"$work/frames"
    [ -s "$work/frames" ] || fail "$1: no frames"
    found=$(awk -F '\t' '$1 == "" || $3 == "" || $4 != "" || $5 == "0" || $6 == "0" || $7 ~ /8388608/' "$work/frames" | head -n 3)
    [ -z "$found" ] || fail "$1: $found"
}

reduce() { # ARGUMENT...
    timeout 100 "$sstar" allreduce -b 64K -e 64K -n 2 -w 0 -c 0 --ranks 2 --ranks-per-node 1 \
        --algorithm ring --slice 64K --capture "$work/run.pcapng" "$@" >"$work/output" 2>&1 ||
        fail "allreduce $*: $(cat "$work/output")"
}
count() { # FILTER
    shark "$work/run.pcapng" -Y "$1" | wc -l
}

# Two steps of two ranks, two runs in place and two out of it: at least 16 messages of half the vector
# and a trailer of 16 bytes; what the ranks measure first may be as long.
reduce
clean "$work/run.pcapng"
[ "$(count 'infiniband.reth.dmalen == 32784')" -ge 16 ] || fail "messages of the AllReduce"
opcodes=$(cut -f 1 "$work/frames" | sort -nu | xargs)
[ "$opcodes" = "6 7 8 10 17" ] || fail "opcodes $opcodes, not writes and acknowledgements"
bytes=$(shark "$work/run.pcapng" -Y infiniband.reth -T fields -e infiniband.reth.dmalen | awk '{ n += $1 } END { print n }')
carried=$(shark "$work/run.pcapng" -Y 'infiniband.bth.opcode in {6, 7, 8, 10}' -T fields -e udp.length -e infiniband.bth.opcode \
    -e infiniband.bth.padcnt | awk '{ n += $1 - 8 - 12 - 4 - $3 - ($2 == 6 || $2 == 10 ? 16 : 0) } END { print n }')
[ "$bytes" = "$carried" ] || fail "the requests announce $bytes bytes, the frames carry $carried"

# A shaped wire: with immediate data. A file that is there is begun anew.
reduce --wire 20,2,1
clean "$work/run.pcapng"
[ "$(count 'infiniband.reth.dmalen == 32784')" -ge 16 ] || fail "messages on a shaped wire"
[ "$(count 'infiniband.immdt')" -gt 0 ] || fail "no immediate data on a shaped wire"
reduce --capture-snap 64
[ "$(shark "$work/run.pcapng" -T fields -e frame.cap_len | sort -nu | tail -n 1)" -eq 64 ] || fail "--capture-snap 64"
timeout 20 "$sstar" allreduce --capture /nowhere/file --ranks 2 >"$work/output" 2>&1
[ $? -eq 1 ] || fail "a capture that cannot be written: $(cat "$work/output")"
grep -q 'the capture /nowhere/file cannot be written' "$work/output" || fail "$(cat "$work/output")"

# What the conformance suite sends of each operation, on one port and over IPv4, its refusals too. (All of it would be
# the same frames many thousands of times.)
for checks in '*: *' 'U? *' 'READ *' 'WRITE_WITH_IMM *' '*_AND_*' 'a receive*'; do
    SOFTNIC_CAPTURE=$work/suite.pcapng SSTAR_TEST_DEVICE=softnic-one-port SSTAR_TEST_FILTER=$checks \
        timeout 60 "$build/tests/test_conformance" >"$work/output" 2>&1 || fail "test_conformance '$checks': $(grep -v -e OK -e RUN "$work/output")"
done
clean "$work/suite.pcapng"
for opcode in 4 9 12 18 19 20 36 100; do
    awk -F '\t' -v opcode="$opcode" '$1 == opcode { found = 1 } END { exit !found }' "$work/frames" ||
        fail "no frame with opcode $opcode"
done
awk -F '\t' '$2 == 2 { found = 1 } END { exit !found }' "$work/frames" || fail "no remote access error"
[ "$failures" -eq 0 ]
