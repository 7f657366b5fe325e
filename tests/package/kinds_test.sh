#!/usr/bin/env bash
# usage: kinds_test.sh PREFIX COMPILER FOLDER    which library find_package chooses: with both installed, and without the static
# library
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
prefix=$1 compiler=$2 folder=$3
rm -rf "$folder"
mkdir -p "$folder"
cp -r "$prefix" "$folder/shared_alone"
rm "$folder"/shared_alone/lib/cmake/apex_cpp/apex_cpp-static-targets*.cmake

# expect TEXT PREFIX OPTION...: configuring prints the text.
expect() {
  cmake -G Ninja -S tests/package/kinds -B "$folder/build" --fresh "-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_PREFIX_PATH=$(torch_prefix)" \
    "-Dapex_cpp_ROOT=$2" "${@:3}" >"$folder/log" 2>&1 || true
  tr -s ' \n' ' ' <"$folder/log" | grep -qF "$1" || { cat "$folder/log"; die "expected '$1' with ${*:3}"; }
}
expect "found STATIC_LIBRARY" "$prefix"
expect "found SHARED_LIBRARY" "$prefix" -DKIND=shared
expect "found SHARED_LIBRARY" "$prefix" -DBUILD_SHARED_LIBS=ON
expect "found STATIC_LIBRARY" "$prefix" -DBUILD_SHARED_LIBS=ON -DKIND=static
# Programs for old versions of CMake, which CMake 4 refuses, know no apex_cpp_ROOT.
[[ $(cmake --version) != *"version 3."* ]] || expect "found STATIC_LIBRARY" "$prefix" -DMINIMUM=3.0 "-DCMAKE_PREFIX_PATH=$prefix;$(torch_prefix)"
expect "found SHARED_LIBRARY" "$folder/shared_alone"
expect "static library is not installed" "$folder/shared_alone" -DKIND=static
