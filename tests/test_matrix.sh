#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sstar transpose and sstar spmv from outside: every strategy ends with what is right, a matrix that
# is none is refused.
set -u
# shellcheck source=tests/program.sh
. "$(dirname "$0")/program.sh"

# 60 x 40, five entries a row; and a symmetric pattern of 30.
awk 'BEGIN { print "%%MatrixMarket matrix coordinate real general\n60 40 300"
             for (i = 0; i < 60; i++) for (k = 0; k < 5; k++) print i + 1, (i * 7 + k * 9) % 40 + 1, i / 8 - k }' >"$work/wide.mtx"
awk 'BEGIN { print "%%MatrixMarket matrix coordinate pattern symmetric\n30 30 59"
             for (i = 1; i <= 30; i++) { print i, i; if (i > 1) print i, i - 1 } }' | gzip >"$work/band.mtx.gz"
shaped=(--ranks 4 --ranks-per-node 2 --wire '20,2,0.5')
expect 0 '^ +adaptive +300 .* 0$' "$sstar" transpose "$work/wide.mtx" "${shaped[@]}" --json "$work/transpose.json" --csv "$work/out.csv"
expect 0 '^ +node +300 .* 0$' "$sstar" spmv "$work/wide.mtx" "${shaped[@]}" --json "$work/spmv.json" --flush-bytes 64
expect 0 '^ +rank +88 .* 0$' "$sstar" spmv "$work/band.mtx.gz" --ranks 3 --rows block --json "$work/band.json"
expect 0 ' over 2 ranks' "$sstar" run -n 2 --ranks-per-node 1 -- "$sstar" transpose "$work/band.mtx.gz" --strategy none --repeat 1
if command -v jq >/dev/null; then
    counts "$work/transpose.json" '[.transpose[] | .strategy, .wrong]' '["none",0,"rank",0,"node",0,"mesh",0,"adaptive",0]'
    counts "$work/transpose.json" '[.transpose[] | .items_per_s > 0 and .predicted_us > 0] | unique' '[true]'
    counts "$work/spmv.json" '[.spmv[] | .wrong, .item_bytes] | unique' '[0,12]'
    counts "$work/spmv.json" '[.spmv[0].wire_messages, .spmv[0].percent_past_s_star]' "[$(jq '.spmv[0].cross_items + 8' "$work/spmv.json"),0]"
    counts "$work/band.json" '[.entries, .distribution, (.spmv | map(.cross_items) | add)]' '[88,"block",0]'
fi
[ "$(wc -l <"$work/out.csv")" = 6 ] || fail 'the CSV has not a line for each strategy'

refuse() { expect "$1" "$2" "$sstar" transpose --ranks 2 "${@:3}"; }
sed 's/^60 40 300/60 40 301/' "$work/wide.mtx" >"$work/cut.mtx"
refuse 1 'cut\.mtx: 300 entries, but the size line says 301' "$work/cut.mtx"
[ "$(grep -c 'cut.mtx' "$work/output")" = 1 ] || fail 'it is said more than once'
refuse 1 "sstar:1: byte 0x7f" "$sstar"
refuse 1 'nowhere: cannot open it' "$work/nowhere"
refuse 2 'which matrix'
refuse 2 'one matrix is taken' a b
refuse 2 '--rows takes cyclic or block' --rows random a
refuse 2 '--flush-bytes takes' --flush-bytes 1 a
refuse 2 '--repeat takes' --repeat 0 a
refuse 2 '--strategy takes none, rank' --strategy best a
program_end 'matrix: as it should be'
