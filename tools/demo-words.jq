# SPDX-License-Identifier: MIT
# demo.json in plain words: one paragraph.
def round1: . * 10 | round | . / 10;
def kb: . / 1000 | round1 | tostring + " KB";
def pct: . * 100 | . * 100 | round | . / 100 | tostring + " %";
def by(s): .alltoall[] | select(.strategy == s);

(by("none")) as $none | (by("rank")) as $rank | (by("node")) as $node | .fit as $f |
(.allreduce | map(select(.in_place | not)) | group_by(.size_bytes) |
    map({(.[0].size_bytes | tostring): .}) | add) as $sizes |
($sizes["65536"][] | select(.algorithm == "ring")) as $ring |
($sizes["65536"][] | select(.algorithm | startswith("hierarchical"))) as $hier |
# A `none` that was disturbed would flatter the others: then the gain is against what its wire needs.
([$none.seconds, 1.1 * $none.predicted_seconds] | min) as $before |
def ms: . * 1000 | round1 | tostring + " ms";

"Measured on \(.device), not on a NIC\(if .fitted then "" else " (but the next three figures are what was imposed: " +
"the machine was too busy to measure them)" end): a lone message starts in \($f.alpha_us | round1) us and then moves at " +
"\($f.beta_GBps | . * 1000 | round | . / 1000) GB/s, so S* is \($f.s_star_bytes | kb): below that a message pays mostly for " +
"being sent at all. Back to back a message costs \($f.gap_us | round1) us and its bytes, so a stream pays mostly for its messages " +
"below S*rate = \($f.s_star_rate_bytes | kb). " +
"One message at a time, \($none.share_bytes_past_s_star | pct) of the bytes that cross nodes travel past S*. " +
"Gathered per rank it is \($rank.share_bytes_past_s_star | pct), gathered per node through a gateway " +
"\($node.share_bytes_past_s_star | pct). The same \($none.messages) messages, \($none.cross_messages) of them across nodes, then take " +
"\($node.seconds | ms) instead of \($none.seconds | ms): \($before / $node.seconds | round1) times faster per node " +
"and \($before / $rank.seconds | round1) times per rank (what the wires need: \($none.predicted_seconds / $node.predicted_seconds | round1))" +
(if $none.seconds > 1.1 * $none.predicted_seconds then
    " -- taken against 1.1 times the \($none.predicted_seconds | ms) that the wire needs, since something disturbed the machine" else "" end) +
". The price is waiting: the first message of a buffer left after \($node.age_p99_us / 1000 | round1) ms per node and " +
"\($rank.age_p99_us / 1000 | round1) ms per rank (p99). Lost, doubled, altered: \($node.lost + $none.lost + $rank.lost), " +
"\($node.doubled + $none.doubled + $rank.doubled), \($node.altered + $none.altered + $rank.altered). " +
"A hierarchical AllReduce of 64 KiB takes \($hier.time_us / 1000 | round1) ms (predicted \($hier.predicted_us / 1000 | round1)), " +
"the ring \($ring.time_us / 1000 | round1) ms (predicted \($ring.predicted_us / 1000 | round1))."
