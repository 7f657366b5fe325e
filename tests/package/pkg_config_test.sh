#!/usr/bin/env bash
# usage: pkg_config_test.sh PREFIX COMPILER FOLDER    compiles and runs a program by what pkg-config says, without CMake
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
command -v pkg-config >/dev/null || { echo "skipped: pkg-config is missing, which tools/setup --tests installs"; exit 77; }
prefix=$1 compiler=$2 folder=$3
torch=$(dirname "$(dirname "$(torch_prefix)")")
mkdir -p "$folder"
flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --define-variable=torch="$torch" --cflags --libs apex_cpp)
"$compiler" tests/package/scale.cpp -o "$folder/scale" $flags
[ "$("$folder/scale")" = "6 6 6" ]
