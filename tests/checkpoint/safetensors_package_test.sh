#!/usr/bin/env bash
# usage: safetensors_package_test.sh PROGRAM    runs safetensors_package_test.py with the Python and the packages of tools/setup
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../tools/lib.sh"
packages=$(python_packages safetensors)
[ -d "$packages" ] || die "$packages is missing: run tools/setup first"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages "$(environment)/bin/python" -W ignore "$here/safetensors_package_test.py" "$1" "$folder"
