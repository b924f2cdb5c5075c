#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What softroce-lab refuses before it boots anything: with a sentence, 2 for wrong usage and 125 where the lab itself
# cannot work. That it boots is tried by tools/test-lab.
set -euo pipefail
lab=$(dirname "$0")/../tools/softroce-lab
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# refused STATUS PATTERN ARG...
refused() {
    local wanted=$1 pattern=$2 status=0
    shift 2
    timeout 20 "$lab" "$@" >"$work/said" 2>&1 </dev/null || status=$?
    if [ "$status" -ne "$wanted" ] || ! grep -Eq -e "$pattern" "$work/said"; then
        printf 'test_softroce_lab: "%s": status %d, not %d, or it did not say "%s"\n' "$*" "$status" "$wanted" "$pattern" >&2
        cat "$work/said" >&2
        exit 1
    fi
}

refused 2 'usage: softroce-lab'
refused 2 'usage: softroce-lab' nonsense
refused 0 'usage: softroce-lab' --help
refused 0 'usage: softroce-lab' run --help
refused 2 'needs a command after --' run
refused 2 'needs a command after --' run --hosts 2 --
refused 2 'COMMAND comes after --' run ibv_devinfo
refused 2 'unknown option --bogus' run --bogus -- true
refused 2 '--timeout needs a value' run --timeout
for option in '--hosts 3' '--hosts 0' '--ranks 0' '--devices 17' '--mtu 100' '--mtu -1' '--cpus x' '--memory 1' '--timeout 0' \
    '--memlock -5'; do
    # shellcheck disable=SC2086
    refused 2 "${option%% *} takes a whole number" run $option -- true
done
for option in '--loss 101' '--duplicate x' '--corrupt -1' '--reorder 1e3'; do
    # shellcheck disable=SC2086
    refused 2 "${option%% *} takes a percentage" run $option -- true
done
refused 2 '--delay takes a time' run --delay banana -- true
refused 2 '--rate takes a rate' run --rate 5 -- true
refused 2 '--flap takes AFTER,FOR' run --flap 5 -- true
refused 2 '--env takes the name' run --env 'A B' -- true
refused 2 '--accel takes tcg or kvm' run --accel xen -- true
refused 2 '--devices is for one host' run --hosts 2 --devices 4 -- true
refused 2 'with --native there is none' run --native --loss 1 -- true
refused 2 'prepare takes no arguments' prepare more
refused 2 'shell needs a terminal' shell
[ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] || refused 125 'has no RDMA device' run --native -- true
SSTAR_LAB_CACHE=/dev/null/x refused 125 'cannot make the cache folder' prepare
PATH=$work:/usr/bin:/bin
cat >"$work/dpkg-query" <<'END'
#!/bin/sh
exit 1
END
printf '#!/bin/sh\nexit 1\n' >"$work/apt-get"
printf '#!/bin/sh\nexec "$@"\n' >"$work/sudo"
chmod +x "$work"/{dpkg-query,apt-get,sudo}
SSTAR_LAB_CACHE=$work/cache refused 125 'apt-get update failed' prepare
