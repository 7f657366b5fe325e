#!/usr/bin/env bash
# usage: event_files_test.sh EVENT_FILES [TRAIN]    runs event_files_test.py with the Python and the packages of tools/setup --tests
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../tools/lib.sh"
packages=$(python_packages tensorboard):$(python_packages safetensors)  # numpy is in the second
[ -d "${packages%%:*}" ] || die "${packages%%:*} is missing: run tools/setup --tests first"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages "$(environment)/bin/python" -W ignore "$here/event_files_test.py" "$folder" "$@"
