#!/usr/bin/env bash
# usage: with_wheel.sh PYTHON COMMAND...    runs the command where find_package(apex_cpp) takes the wheel that this Python has
set -euo pipefail
apex_cpp_ROOT=$("$1" -c 'import apex_cpp; print(apex_cpp.cmake_prefix_path.split(";")[0])')
export apex_cpp_ROOT
# pip dates files from when it installs them. As old as their sources, headers that have not changed compile nothing again.
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
(
  cd "$apex_cpp_ROOT"/include/apex_cpp-*
  find . -name '*.h' -exec touch -r "$sources/{}" {} \;
)
exec "${@:2}"
