#!/usr/bin/env bash
# usage: libtorch_folder_test.sh INITIAL_CACHE FOLDER    what the system and a LibTorch folder have is enough to configure this project
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
initial_cache=$1 folder=$2
torch=$(dirname "$(dirname "$(torch_prefix)")")
old_thrust=$folder/old/include/thrust/system/omp/execution_policy.h
rm -rf "$folder"
mkdir -p "$folder/libtorch/lib" "$folder/nvidia/cu13/include" "$(dirname "$old_thrust")"
ln -s "$torch/../nvidia/cu13/include/cccl" "$folder/nvidia/cu13/include"
ln -s "$torch/include" "$torch/share" "$folder/libtorch"
for library in "$torch"/lib/*; do
  [[ $library == *cuda* ]] || ln -s "$library" "$folder/libtorch/lib"
done
touch "$old_thrust"  # as Debian's libthrust-dev, which is too old
cmake -G Ninja -C "$initial_cache" -S . -B "$folder/build" "-DCMAKE_PREFIX_PATH=$folder/libtorch;$folder/old" -DAPEX_CPP_CUDA=OFF \
  -DAPEX_CPP_BUILD_TESTS=ON -DAPEX_CPP_BUILD_EXAMPLES=ON -DAPEX_CPP_BUILD_TOOLS=ON >"$folder/log" 2>&1 ||
  { cat "$folder/log"; die "a LibTorch folder without CUDA is not enough"; }
grep -q "apex_cpp: no tests, which need a LibTorch with CUDA" "$folder/log" || { cat "$folder/log"; die "it does not say that there are no tests"; }
! grep -q "^APEX_CPP_THRUST_INCLUDE_DIR:.*$folder/old" "$folder/build/CMakeCache.txt" || die "it takes a Thrust that is too old"
