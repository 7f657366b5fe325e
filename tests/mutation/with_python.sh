#!/usr/bin/env bash
# usage: with_python.sh TEST ARGUMENT    runs a test with the interpreter of tools/port_check, which has tree-sitter
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
exec "$(port_check_python)" -B "tests/mutation/$1" "$2" "$root"
