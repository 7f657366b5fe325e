#!/usr/bin/env bash
# usage: layouts_test.sh COMPILER TORCH_VERSION INCLUDE_FOLDER...   fails if a class of the public headers has another layout than in layouts.txt
#        layouts_test.sh --update COMPILER INCLUDE_FOLDER...        writes layouts.txt
# layouts.txt has each class in bytes: its size and alignment, its bases with their offsets, and the entries of its virtual tables. A program
# that was built with one layout breaks with a library of another.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
root=$here/../..
update=
[ "$1" != --update ] || { update=yes && shift; }
compiler=$1 && shift
if [ -z "$update" ]; then
  # Another torch may have other bases, and another compiler writes its classes otherwise.
  [[ "$(sed -n 's/^torch==//p' "$root/tools/requirements.txt")" = "$1"* ]] || { echo "skipped: this is not the torch of layouts.txt" && exit 77; }
  shift
fi
"$compiler" --version | grep -q 'Free Software Foundation' || { echo "skipped: only g++ writes the layouts of classes" && exit 77; }
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cmake -P "$root/tools/cmake/ApexHeaders.cmake" 2>&1 | sed -n 's/^public \(.*\.h\)$/#include <\1>/p' >"$work/all.cpp"
"$compiler" -std=c++17 -fsyntax-only -fdump-lang-class="$work/classes" -I"$root" "${@/#/-isystem}" "$work/all.cpp"
awk '
  /^Vtable for / { table = substr($0, 12); next }
  table && / entries$/ { entries[table] = $(NF - 1); table = "" }
  /^Class / { name = substr($0, 7); is_ours = /^Class apex::/; line = 0; next }
  !NF { is_ours = 0 }
  !is_ours || /primary-for/ { next }
  $1 ~ /^size=/ { text[name] = $1 " " $2; next }
  /\(0x0x/ {
    base = offset = $0
    sub(/ \(0x0x.*/, "", base)
    sub(/.*\(0x0x[^)]*\) /, "", offset)
    sub(/ .*/, "", offset)
    if (line++) text[name] = text[name] ", " base " at " offset
  }
  END { for (name in text) print name ": " text[name] (name in entries ? ", " entries[name] " virtual entries" : "") }
' "$work/classes" | LC_ALL=C sort >"$work/layouts"
[ -s "$work/layouts" ] || { echo "no class of apex was found" && exit 1; }
[ -z "$update" ] || { cp "$work/layouts" "$here/layouts.txt" && exit; }
if ! diff "$here/layouts.txt" "$work/layouts"; then
  echo "The layout of these classes has changed (<: before). Programs have to be built anew: say so in CHANGELOG.md, raise the minor version,"
  echo "which is the soname's, unless it was raised since the last release, and run $0 --update $compiler $*"
  exit 1
fi
