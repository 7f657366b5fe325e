#!/usr/bin/env bash
# usage: separable_cuda_test.sh CONSUMER INITIAL_CACHE FOLDER    a project that compiles its own CUDA files separably needs no device link of
# apex_cpp's
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
consumer=$1 initial_cache=$2 folder=$3
rm -rf "$folder"
mkdir -p "$folder"
cmake -G Ninja -C "$initial_cache" -S "$consumer" -B "$folder/build" "-DAPEX_CPP_SOURCE_DIR=$root" -DAPEX_CPP_CUDA=ON \
  -DCMAKE_CUDA_SEPARABLE_COMPILATION=ON >"$folder/log" 2>&1 || { cat "$folder/log"; die "it cannot be configured"; }
rules=$(cat "$folder/build/build.ninja" "$folder/build/CMakeFiles/rules.ninja")
grep -q 'updates\.cu' <<<"$rules" || die "it has no device code"
! grep -q -e '-rdc=true' <<<"$rules" || die "the device code needs a device link"
