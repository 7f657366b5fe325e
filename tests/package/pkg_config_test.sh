#!/usr/bin/env bash
# usage: pkg_config_test.sh PREFIX COMPILER INITIAL_CACHE FOLDER    compiles and runs a program with the output of pkg-config,
# without CMake
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
command -v pkg-config >/dev/null || { echo "skipped: pkg-config is missing, which tools/setup --tests installs"; exit 77; }
prefix=$1 compiler=$2 initial_cache=$3 folder=$4
torch=$(dirname "$(dirname "$(torch_prefix)")")
mkdir -p "$folder"
flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --define-variable=torch="$torch" --cflags --libs apex_cpp)
"$compiler" tests/package/scale.cpp -o "$folder/scale" $flags
[ "$("$folder/scale")" = "6 6 6" ]
"$compiler" tests/package/warnings.cpp -fsyntax-only -Wall -Wextra -Woverloaded-virtual -Wsign-conversion -Werror $flags
# The program's own standard stays in force.
echo 'static_assert(__cplusplus >= 202002L);' | "$compiler" -std=c++20 -fsyntax-only -x c++ - $flags

# With libraries in a system-specific folder, as on Debian, all paths that pkg-config prints still exist.
cmake -G Ninja -C "$initial_cache" -S . -B "$folder/build" -DAPEX_CPP_CUDA=OFF -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu \
  >"$folder/log" 2>&1 || { cat "$folder/log"; die "it cannot be configured for lib/x86_64-linux-gnu"; }
cmake --install "$folder/build" --component development --prefix "$folder/usr" >/dev/null
libdir=$folder/usr/lib/x86_64-linux-gnu
named() { realpath "$(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --variable="$1" apex_cpp)"; }
[ "$(named libdir)" = "$(realpath "$libdir")" ] || die "libdir is $(named libdir)"
[ "$(named prefix)" = "$(realpath "$folder/usr")" ] || die "prefix is $(named prefix)"
[ -f "$(named includedir)/apex_cpp/amp.h" ] || die "no apex_cpp/amp.h in $(named includedir)"
