#!/usr/bin/env bash
# usage: wheel_find_package_test.sh PYTHON CONSUMER INITIAL_CACHE FOLDER    builds and runs a program with only the wheel and
# its torch
set -euo pipefail
python=$1 consumer=$2 cache=$3 folder=$4
rm -rf "$folder"
cmake -G Ninja -C "$cache" -S "$consumer" -B "$folder" \
  "-DCMAKE_PREFIX_PATH=$("$python" -c 'import apex_cpp; print(apex_cpp.cmake_prefix_path)')"
cmake --build "$folder"
"$folder/consumer"
# The program runs with the wheel's libraries, yaml-cpp too; nothing of the library was compiled here.
libraries=$(ldd "$folder/consumer")
site=$(cat "$(dirname "$python")/../site")
for library in libapex_cpp libyaml-cpp; do
  grep -qE "$library\.so\.[0-9.]+ => $site/apex_cpp/torch-" <<<"$libraries" || { echo "$library is not the wheel's: $libraries"; exit 1; }
done
[ "$(find "$folder/CMakeFiles/consumer.dir" -name '*.o' | wc -l)" = 1 ]
