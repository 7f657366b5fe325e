#!/usr/bin/env bash
# usage: two_folders.sh FOLDER    builds the packages of this commit in two clones, at paths of different length, and compares them.
# ccache is off: it would give the second clone what the first one compiled.
set -euo pipefail
folder=$1
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
mkdir -p "$folder"
rm -rf "$folder"/{one,another}
for clone in "$folder/one" "$folder/another/and/longer"; do
  git clone --quiet "$root" "$clone"
  CCACHE_DISABLE=1 "$clone/tools/package"
done
different=0
for package in "$folder"/one/dist/*; do
  cmp "$package" "$folder/another/and/longer/dist/${package##*/}" || different=1
done
exit $different
