#!/usr/bin/env bash
# usage: rules_test.sh COMPILER    runs rules_test.py with the interpreter of tools/port_check, which has tree-sitter
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
exec "$(port_check_python)" -B tests/mutation/rules_test.py "$1" "$root"
