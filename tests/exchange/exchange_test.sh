#!/usr/bin/env bash
# usage: exchange_test.sh TEST [PROGRAM]    runs a test of this folder with the Python and the packages of tools/setup
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../tools/lib.sh"
packages=$(python_packages safetensors)
[ -d "$packages" ] || die "$packages is missing: run tools/setup first"
EXCHANGE_PROGRAM=${2-} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages "$(environment)/bin/python" -W ignore "$here/$1"
