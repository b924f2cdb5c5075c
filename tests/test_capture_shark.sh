#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What Wireshark makes of a capture: of an AllReduce, and of what the conformance suite sends.
# shellcheck disable=SC2016 # $1 is a field of awk's
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
# Every frame is RoCEv2 with an ICRC, and Wireshark finds fault with none. (tshark 4.0 shows the ICRC
# and does not check it; test_capture does.) Leaves what it says of each in $work/frames: opcode, error code, what must
# be there, what must not, then length of the message, of the datagram, of the padding, immediate data.
clean() { # FILE
    local found
    tshark "${guesses[@]}" -r "$1" -o ip.check_checksum:TRUE -o udp.check_checksum:TRUE -T fields -e infiniband.bth.opcode \
        -e infiniband.aeth.syndrome.error_code -e infiniband.invariant.crc -e _ws.malformed -e ip.checksum.status \
        -e udp.checksum.status -e _ws.expert.severity -e frame.number -e infiniband.reth.dmalen -e udp.length \
        -e infiniband.bth.padcnt -e infiniband.immdt >"$work/frames" 2>/dev/null
    [ -s "$work/frames" ] || fail "$1: no frames"
    found=$(awk -F '\t' '$1 == "" || $3 == "" || $4 != "" || $5 == "0" || $6 == "0" || $7 ~ /8388608/' "$work/frames" | head -n 3)
    [ -z "$found" ] || fail "$1: $found"
}

reduce() { # ARGUMENT...
    timeout 100 "$sstar" allreduce -b 64K -e 64K -n 2 -w 0 -c 0 --ranks 2 --ranks-per-node 1 \
        --algorithm ring --slice 64K --capture "$work/run.pcapng" "$@" >"$work/output" 2>&1 ||
        fail "allreduce $*: $(cat "$work/output")"
}
count() { # CONDITION on the fields of $work/frames
    awk -F '\t' "$1 { n++ } END { print n + 0 }" "$work/frames"
}
sum() { # EXPRESSION
    awk -F '\t' "{ n += $1 } END { print n + 0 }" "$work/frames"
}

# Two steps of two ranks, two runs in place and two out of it: at least 16 messages of half the vector
# and a trailer of 16 bytes; what the ranks measure first may be as long.
reduce
clean "$work/run.pcapng"
[ "$(count '$9 == 32784')" -ge 16 ] || fail "messages of the AllReduce"
opcodes=$(cut -f 1 "$work/frames" | sort -nu | xargs)
[ "$opcodes" = "6 7 8 10 17" ] || fail "opcodes $opcodes, not writes and acknowledgements"
bytes=$(sum '$9')
carried=$(sum '($1 == 17 ? 0 : $10 - 8 - 12 - 4 - $11 - ($1 == 6 || $1 == 10 ? 16 : 0))')
[ "$bytes" = "$carried" ] || fail "the requests announce $bytes bytes, the frames carry $carried"

# A shaped wire: with immediate data. A file that is there is begun anew.
reduce --wire 20,2,1
clean "$work/run.pcapng"
[ "$(count '$9 == 32784')" -ge 16 ] || fail "messages on a shaped wire"
[ "$(count '$12 != ""')" -gt 0 ] || fail "no immediate data on a shaped wire"
reduce --capture-snap 64
[ "$(tshark -r "$work/run.pcapng" -T fields -e frame.cap_len 2>/dev/null | sort -nu | tail -n 1)" -eq 64 ] || fail "--capture-snap 64"
# Before any rank is started; by each that a launcher started, and none waits for another.
refused() { # TIMES COMMAND...
    local times=$1 status=0
    shift
    timeout 20 "$@" allreduce --capture /nowhere/file >"$work/output" 2>&1 || status=$?
    [ $status -eq 1 ] || fail "a capture that cannot be written: $(cat "$work/output")"
    [ "$(grep -c 'the capture /nowhere/file cannot be written: No such file' "$work/output")" -eq "$times" ] ||
        fail "$(cat "$work/output")"
    ! grep -v -e 'cannot be written' -e 'ended with status 1$' "$work/output" >"$work/rest" ||
        fail "more was said: $(cat "$work/rest")"
}
refused 1 "$sstar"
refused 2 "$sstar" run -n 2 -- "$sstar"

# What the conformance suite sends of each operation, on one port and over IPv4, its refusals too. (All of it would be
# the same frames many thousands of times.)
for checks in '*: *' 'U? *' 'READ *' 'WRITE_WITH_IMM *' '*_AND_*' 'a receive*'; do
    SOFTNIC_CAPTURE=$work/suite.pcapng SSTAR_TEST_DEVICE=softnic-one-port SSTAR_TEST_FILTER=$checks \
        timeout 60 "$build/tests/test_conformance" >"$work/output" 2>&1 || fail "test_conformance '$checks': $(grep -v -e OK -e RUN "$work/output")"
done
clean "$work/suite.pcapng"
for opcode in 4 9 12 18 19 20 36 100; do
    [ "$(count "\$1 == $opcode")" -gt 0 ] || fail "no frame with opcode $opcode"
done
[ "$(count '$2 == 2')" -gt 0 ] || fail "no remote access error"
[ "$failures" -eq 0 ]
