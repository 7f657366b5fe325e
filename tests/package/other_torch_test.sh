#!/usr/bin/env bash
# usage: other_torch_test.sh PREFIX CONSUMER COMPILER FOLDER    find_package reports a LibTorch of another minor version
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
prefix=$1 consumer=$2 compiler=$3 folder=$4
torch=$(dirname "$(dirname "$(torch_prefix)")")
rm -rf "$folder"
mkdir -p "$folder/torch/share/cmake/Torch"
ln -s "$torch/lib" "$torch/include" "$folder/torch"
touch "$folder/torch/share/cmake/Torch/TorchConfig.cmake"
sed 's/\(PACKAGE_VERSION "[0-9]*\)[^"]*"/\1.99.1"/' "$torch/share/cmake/Torch/TorchConfigVersion.cmake" \
  >"$folder/torch/share/cmake/Torch/TorchConfigVersion.cmake"
if cmake -G Ninja -S "$consumer" -B "$folder/build" "-DCMAKE_CXX_COMPILER=$compiler" "-Dapex_cpp_ROOT=$prefix" \
  "-DCMAKE_PREFIX_PATH=$folder/torch/share/cmake" >"$folder/log" 2>&1; then
  die "the consumer was configured with a LibTorch that the package was not built with"
fi
# CMake may break the lines of a message anywhere.
tr -s ' \n' ' ' <"$folder/log" | grep -qE 'was built with LibTorch [0-9]+\.[0-9]+, and .* is LibTorch [0-9]+\.99\.1: set CMAKE_PREFIX_PATH' ||
  { cat "$folder/log"; die "the error does not name both versions and the remedy"; }
# The remedy works in the same build tree.
cmake -S "$consumer" -B "$folder/build" "-DCMAKE_PREFIX_PATH=$(torch_prefix)" >"$folder/log" 2>&1 ||
  { cat "$folder/log"; die "the remedy that the error names does not work"; }
