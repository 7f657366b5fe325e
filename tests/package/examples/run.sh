#!/usr/bin/env bash
# usage: run.sh NAME COPIES PROGRAMS    runs NAME_test.py on the copied example COPIES/NAME, whose programs are in PROGRAMS/NAME
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../../tools/lib.sh"
packages=$(python_packages safetensors)
[ -d "$packages" ] || die "$packages is missing: run tools/setup first"
if [ "$1" = imagenet ]; then
  packages+=:$(packages_folder "$(dirname "$(report_python)")/..")  # Pillow, which matplotlib needs
fi
export EXAMPLE=$2/$1 PROGRAMS=$3/$1 DIGITS=${APEX_CPP_DATA:-$cache/data}/digits/digits.csv.gz
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
exec "$(environment)/bin/python" -W ignore "$here/$1_test.py"
