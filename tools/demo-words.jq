# SPDX-License-Identifier: MIT
# demo.json in plain words: one paragraph.
def round1: . * 10 | round | . / 10;
def kb: . / 1000 | round1 | tostring + " KB";
def pct: . * 100 | . * 100 | round | . / 100 | tostring + " %";
def by(s): .alltoall[] | select(.strategy == s);

(by("none")) as $none | (by("rank")) as $rank | (by("node")) as $node | .fit as $f |
([.allreduce[] | select(.algorithm == "ring" and (.in_place | not))] | max_by(.size_bytes)) as $ring |
([.allreduce[] | select(.algorithm == "hierarchical" and (.in_place | not))] | max_by(.size_bytes)) as $hier |

"Measured on \(.device), not on a NIC: a lone message starts in \($f.alpha_us | round1) us and then moves at " +
"\($f.beta_GBps | . * 1000 | round | . / 1000) GB/s, so S* is \($f.s_star_bytes | kb): below that a message pays mostly for " +
"being sent at all. One message at a time, \($none.share_bytes_past_s_star | pct) of the bytes that cross nodes travel past S*. " +
"Gathered per rank it is \($rank.share_bytes_past_s_star | pct), gathered per node through a gateway " +
"\($node.share_bytes_past_s_star | pct). The same \($none.messages) messages then take \($node.seconds * 1000 | round) ms " +
"instead of \($none.seconds * 1000 | round) ms: \($none.seconds / $node.seconds | round1) times faster per node " +
"(the model says \($none.predicted_seconds / $node.predicted_seconds | round1)), " +
"\($none.seconds / $rank.seconds | round1) times per rank, for an age of at most \($node.age_p99_us / 1000 | round1) ms (p99) " +
"of the first message in a buffer. Lost, doubled, altered: \($node.lost + $none.lost + $rank.lost), " +
"\($node.doubled + $none.doubled + $rank.doubled), \($node.altered + $none.altered + $rank.altered). " +
"A hierarchical AllReduce of \($hier.size_bytes / 1048576 | round1) MiB takes \($hier.time_us / 1000 | round1) ms here, " +
"the ring \($ring.time_us / 1000 | round1) ms."
