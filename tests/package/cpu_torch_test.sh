#!/usr/bin/env bash
# usage: cpu_torch_test.sh CONSUMER INITIAL_CACHE FOLDER    with nvcc and a LibTorch without CUDA, a build has no CUDA code
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
consumer=$1 initial_cache=$2 folder=$3
[ -n "$(find_nvcc)" ] || { echo "skipped: there is no nvcc"; exit 77; }
torch=$(dirname "$(dirname "$(torch_prefix)")")
rm -rf "$folder"
mkdir -p "$folder/torch/share/cmake/Torch"
ln -s "$torch/lib" "$torch/include" "$folder/torch"
cp "$torch/share/cmake/Torch/TorchConfigVersion.cmake" "$folder/torch/share/cmake/Torch"
# It defines no target torch_cuda, as that of a LibTorch without CUDA.
echo "set(TORCH_INSTALL_PREFIX \"$folder/torch\")" >"$folder/torch/share/cmake/Torch/TorchConfig.cmake"

# configure_with APEX_CPP_CUDA
configure_with() {
  cmake -G Ninja -C "$initial_cache" -S "$consumer" -B "$folder/build" "-DCMAKE_PREFIX_PATH=$folder/torch/share/cmake" "-DAPEX_CPP_SOURCE_DIR=$root" \
    "-DAPEX_CPP_CUDA=$1" >"$folder/log" 2>&1
}
# expect TEXT: configuring has printed the text. CMake may break the lines of a message anywhere.
expect() { tr -s ' \n' ' ' <"$folder/log" | grep -qF "$1" || { cat "$folder/log"; die "expected '$1'"; }; }
configure_with AUTO || { cat "$folder/log"; die "AUTO is an error"; }
expect "no CUDA code, since the LibTorch in $folder/torch is a build without CUDA"
! grep -q 'cuda/run\.cpp' "$folder/build/build.ninja" || die "it compiles CUDA code"
! configure_with ON || die "ON is no error"
expect "is a build without CUDA: take one with CUDA, or set APEX_CPP_CUDA=OFF"
