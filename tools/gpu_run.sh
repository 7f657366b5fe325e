#!/usr/bin/env bash
# In the archive of `tools/gpu --pack`: runs the tests, compute-sanitizer and the benches on this machine's GPU.
# usage: ./run.sh [--only test|check|bench] [--out FOLDER]   (default: ./report)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
packages=$(python3 -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')
of_nvidia=$(printf '%s:' "$packages"/nvidia/*/lib)
export LD_LIBRARY_PATH=$here/lib:$packages/torch/lib:$of_nvidia${LD_LIBRARY_PATH:-}
export APEX_CPP_DATA=$here/data
exec python3 "$here/gpu.py" --binaries "$here/bin" --source "$here" --out "$here/report" "$@"
