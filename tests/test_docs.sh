#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The pages of docs name nothing that is gone: files and headings that are linked or named exist, variables are read
# by something, and the commands that are shown take the options that they are shown with.
set -u
# shellcheck source=tests/program.sh
. "$(dirname "$0")/program.sh"
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.." || exit 1
pages=(README.md docs/*.md)

# anchors FILE: its headings as GitHub names them.
anchors() {
    sed -n 's/^##* //p' "$1" | sed 's/[^[:alnum:]_ -]//g; s/ /-/g; s/.*/\L&/'
}
: >"$work/output"
for page in "${pages[@]}"; do
    while IFS= read -r link; do
        file=${link%%#*} anchor=${link#"${link%%#*}"}
        file=${file:+$(dirname "$page")/$file}
        if [ ! -e "${file:-$page}" ]; then
            echo "$page: $link"
        elif [ -n "$anchor" ] && ! anchors "${file:-$page}" | grep -qxF -- "${anchor#\#}"; then
            echo "$page: $link is no heading"
        fi
    done < <(grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//' | grep -v '^http')
    # What stands for several, or for what a reader makes, has a capital or a star in its name.
    grep -oE '`(tools|tests|transport|collectives|docs|cmake)/[A-Za-z0-9_./*-]+' "$page" | tr -d '`' | sort -u | while read -r path; do
        compgen -G "$path" >/dev/null || [[ $path =~ [A-Z] ]] || echo "$page: $path is not there"
    done
done >"$work/output"
[ -s "$work/output" ] && fail 'what is linked or named does not exist'

grep -ohE '\b(SSTAR|SOFTNIC|LAB)_[A-Z0-9_]*[A-Z0-9]' "${pages[@]}" docs/man/*.scd | sort -u | while read -r name; do
    grep -rqw -- "$name" tools tests transport collectives || echo "$name"
done >"$work/output"
[ -s "$work/output" ] && fail 'variables and names that nothing reads'

# The last of a line's commands has the rest of it; a comment, a pipe or what is quoted ends it.
for command in $("$sstar" help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p'); do
    "$sstar" "$command" --help 2>&1 | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u >"$work/known"
    grep -ohE "sstar $command( [^\`#|;&)]*)?" "${pages[@]}" | sed 's/ -- .*//' | grep -oE -- '--[a-z][a-z0-9-]+' |
        sort -u | comm -23 - "$work/known" | sed "s/^/sstar $command /"
done >"$work/output"
[ -s "$work/output" ] && fail 'options that are shown and are not there'
program_end 'docs: all that they name is there'
