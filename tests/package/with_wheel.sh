#!/usr/bin/env bash
# usage: with_wheel.sh PYTHON COMMAND...    runs the command with find_package(apex_cpp) finding the wheel of this Python
set -euo pipefail
apex_cpp_ROOT=$("$1" -c 'import apex_cpp; print(apex_cpp.cmake_prefix_path.split(";")[0])')
export apex_cpp_ROOT
# pip sets the time of installation. The sources' times keep unchanged headers from causing recompilation.
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
(
  cd "$apex_cpp_ROOT"/include/apex_cpp-*
  find . -name '*.h' -exec touch -r "$sources/{}" {} \;
)
exec "${@:2}"
