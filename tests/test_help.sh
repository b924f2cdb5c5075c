#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every command has a man page, and what --help lists and what the page describes are the same
# options, both ways; the common ones stand in sstar(1). The scripts of tools have a --help.
set -u
# shellcheck source=tests/program.sh
. "$(dirname "$0")/program.sh"
man=$(dirname "$0")/../docs/man
export LC_ALL=C

# help_options COMMAND: as argp lists them.
help_options() {
    "$sstar" "$1" --help | sed -nE '/^ {2,6}-/{s/^ +//;s/  .*//;p}' | grep -oE -- '(^|[ ,])--?[a-zA-Z0-9?][a-zA-Z0-9_-]*' | tr -d ' ,' |
        grep -vxE -- '--help|--usage|--version|-\?|-V' | sort -u
}
# page_options FILE [SECTION]: bold, at the beginning of a line of the section.
page_options() {
    awk -v section="# ${2:-OPTIONS}" '/^# / { on = $0 == section } on && /^\*-/' "$1" |
        grep -oE -- '\*--?[a-zA-Z0-9][a-zA-Z0-9_-]*\*' | tr -d '*' | sort -u
}
# page_of COMMAND: what sstar(1) refers to.
page_of() {
    awk -v command="*$1*" '/^# / { on = $0 == "# COMMANDS" }
        on && /^\*/ { split($0, names, ", "); found = 0; for (i in names) { sub(" .*", "", names[i]); if (names[i] == command) found = 1 } }
        on && found && match($0, /\*sstar-[a-z-]+\*\(1\)/) { print substr($0, RSTART + 1, RLENGTH - 5); exit }' "$man/sstar.1.scd"
}

commands=$("$sstar" help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' | grep -v '^help$')
[ "$(echo "$commands" | wc -l)" -ge 15 ] || { "$sstar" help >"$work/output"; fail 'the list of commands was not understood'; }
page_options "$man/sstar.1.scd" 'COMMON OPTIONS' >"$work/common"
for command in $commands; do
    page=$(page_of "$command")
    if [ ! -f "$man/$page.1.scd" ]; then
        echo "$page" >"$work/output"
        fail "sstar(1) names no page of $command that exists"
        continue
    fi
    help_options "$command" >"$work/help"
    page_options "$man/$page.1.scd" >"$work/page"
    cat "$work/help" >>"$work/all.$page"
    : >"$work/output"
    if grep -qx -- '--ranks-per-node' "$work/help" && [ "$command" != run ]; then
        comm -23 "$work/common" "$work/help" >"$work/output"
        [ -s "$work/output" ] && fail "common options that $command does not take"
        sort -u "$work/page" "$work/common" -o "$work/page"
    fi
    comm -23 "$work/help" "$work/page" >"$work/output"
    [ -s "$work/output" ] && fail "options of $command that $page(1) lacks"
done
for file in "$work"/all.*; do
    page=${file##*/all.}
    page_options "$man/$page.1.scd" | comm -23 - <(sort -u "$file") >"$work/output"
    [ -s "$work/output" ] && fail "options of $page(1) that no command takes"
done

# The scripts beside the program, too: --help is told and ends with 0, what cannot be meant is refused with 2.
for script in "$(dirname "$0")"/../tools/*; do
    if [ ! -f "$script" ] || [ ! -x "$script" ]; then continue; fi
    if ! "$script" --help >"$work/output" 2>&1 || [ ! -s "$work/output" ]; then fail "$script --help"; fi
    "$script" --nonsense >"$work/output" 2>&1
    [ $? -eq 2 ] || fail "$script does not refuse --nonsense with 2"
done
program_end 'help and man pages: the same'
