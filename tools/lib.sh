# Shared by the commands of tools/; sourced, with the repository root as working directory.
unset CDPATH  # with it `cd` prints where it went
cd "$(dirname "${BASH_SOURCE[0]}")/.."
self=$(basename "$0")

say() { printf '%s: %s\n' "$self" "$*" >&2; }
die() { say "$*"; exit 1; }

[ -n "${APEX_CPP_CACHE:-}${XDG_CACHE_HOME:-}${HOME:-}" ] || die "HOME is not set: set it, or APEX_CPP_CACHE to the cache folder"
cache=${APEX_CPP_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/apex_cpp}

# The Python environment of this requirements.txt: clones that pin the same wheels share it. torch_environment, where a tool sets it,
# is another one.
environment() { printf '%s' "${torch_environment:-$cache/env-$(sha256sum tools/requirements.txt | cut -c1-12)}"; }

# python_packages NAME: the folder of requirements-NAME.txt's packages, for the environment's Python to find by PYTHONPATH.
python_packages() { printf '%s/%s-%s' "$cache" "$1" "$(sha256sum "tools/requirements-$1.txt" | cut -c1-12)"; }

# The CMAKE_PREFIX_PATH of the environment's LibTorch, noted when the environment was complete.
torch_prefix() { cat "$(environment)/complete"; }

# An environment of Python alone with the packages of a requirements file, made when it is first asked for: prints its interpreter.
# tool_python NAME REQUIREMENTS WHAT
tool_python() {
  local env
  env=$cache/$1-$(sha256sum "$2" | cut -c1-12)
  [ -e "$env/complete" ] || make_tool_python "$@"
  echo "$env/bin/python"
}

# make_tool_python NAME REQUIREMENTS WHAT: by one process at a time, in $env.
make_tool_python() {
  local python
  mkdir -p "$cache" || die "cannot make the cache folder $cache: set APEX_CPP_CACHE to a folder that can be written"
  exec 8>"$cache/$1-lock"
  flock 8
  if [ ! -e "$env/complete" ]; then
    python=$(command -v /usr/bin/python3.11 || command -v python3.11) || die "python3.11 is missing: run tools/setup first"
    say "making a Python environment with $3 in $env"
    rm -rf "$env"
    "$python" -m venv "$env"
    "$env/bin/python" -m pip --disable-pip-version-check --no-input install --no-cache-dir --no-deps --require-hashes --quiet \
      -r "$2" >&2 || die "pip could not install $2 (its message is above)"
    touch "$env/complete"
  fi
  exec 8>&-
}

# The interpreter that plots and reports are made with.
report_python() { tool_python plot tools/requirements-plot.txt "matplotlib and jinja2 (50 MB to download)"; }

# The interpreter of tools/port_check.
port_check_python() { tool_python port_check tools/requirements-port_check.txt "PyYAML and tree-sitter (2 MB to download)"; }

# The interpreter that packages are made with.
package_python() { tool_python package tools/requirements-package.txt "setuptools and auditwheel (2 MB to download)"; }

# As many compilers as there are cores and memory for: one that reads torch's headers takes up to 2 GB.
compile_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemTotal/ { print int($2 / 2000000) + 1 }' /proc/meminfo)
  echo "${CMAKE_BUILD_PARALLEL_LEVEL:-$((cores < memory ? cores : memory))}"
}

# Passes a build's output on, and tells how far it is: on a terminal in one line that is rewritten, else every 15 s. Steps come in as
# NINJA_STATUS below writes them.
show_progress() {
  local line told=0 left live= clear= mark=$'\x01'
  [ -t 2 ] && [ "${TERM:-dumb}" != dumb ] && live=1 clear=$'\r\e[K'
  while IFS= read -r line; do
    if [[ $line =~ ^$mark([0-9]+)/([0-9]+)/([0-9]+) ]]; then
      local steps=${BASH_REMATCH[1]} of=${BASH_REMATCH[2]} seconds=${BASH_REMATCH[3]}
      [ "$steps" -gt 0 ] || continue
      left=$((seconds * (of - steps) / steps))
      [ -n "$live" ] || [ $((seconds - told)) -ge 15 ] || continue
      told=$seconds
      printf "$clear%s: %d of %d steps built, about %d:%02d left${live:+\r}" "$self" "$steps" "$of" $((left / 60)) $((left % 60)) >&2
      [ -n "$live" ] || echo >&2
    else
      printf "$clear%s\n" "$line" >&2
    fi
  done
  printf "$clear" >&2
}

# build PRESET OPTION... [-- TARGET...]: configures build/PRESET with these options of cmake and builds it, all of it or the targets.
# build_tree, where a tool sets it, is the tree in place of build/PRESET.
build() {
  local preset=$1 tree=${build_tree:-build/$1} prefix options=() fresh=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# = 0 ] || shift
  prefix=$(torch_prefix)
  # CMake remembers where it found torch: another environment needs a fresh start.
  [ "$(cat "$tree/torch-prefix" 2>/dev/null)" = "$prefix" ] || fresh=(--fresh)
  mkdir -p "$tree"
  say "configuring $tree"
  cmake --preset "$preset" -B "$tree" "${fresh[@]}" "-DCMAKE_PREFIX_PATH=$prefix" "${options[@]}" >"$tree/configure.log" 2>&1 ||
    { cat "$tree/configure.log" >&2; die "configuring failed (log: $tree/configure.log)"; }
  echo "$prefix" >"$tree/torch-prefix"
  say "building $tree (${*:-everything}, $(compile_jobs) at a time)"
  NINJA_STATUS=$'\x01%f/%t/%e ' cmake --build "$tree" --parallel "$(compile_jobs)" ${1:+--target "$@"} | show_progress ||
    die "the build failed"
}

# What a build of the programs needs of CUDA: APEX_CPP_CUDA, where the caller sets it; what the tree was made with; CUDA where
# there is a GPU. Its code needs a compiler of its own, and runs nowhere else.
cuda_for_programs() {
  local made_with
  made_with=$(sed -n 's/^APEX_CPP_CUDA:[A-Z]*=//p' build/release/CMakeCache.txt 2>/dev/null || true)
  if [ -n "${APEX_CPP_CUDA:-$made_with}" ]; then
    echo "-DAPEX_CPP_CUDA=${APEX_CPP_CUDA:-$made_with}"
  elif ! nvidia-smi -L >/dev/null 2>&1; then
    echo -DAPEX_CPP_CUDA=OFF
  fi
}

# run_processes N COMMAND...: the command as N ranks of one world on this machine, each line of their output after its rank. Once one
# fails, the others have a while to say what they make of it, and are stopped. Exits with the first failure's code.
run_processes() {
  local count=$1 rank cores code=0 ended printers=()
  local -A running=()  # pid -> rank
  shift
  cores=$(nproc)
  export WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > count ? cores / count : 1))}
  MASTER_PORT=$(free_port)
  for ((rank = 0; rank < count; ++rank)); do
    exec {out}> >(trap '' INT; exec sed -u "s/^/[rank $rank] /")
    printers+=($!)
    RANK=$rank LOCAL_RANK=$rank "$@" >&"$out" 2>&1 &
    running[$!]=$rank
    exec {out}>&-
  done
  trap 'kill "${!running[@]}" 2>/dev/null' EXIT
  while [ ${#running[@]} -gt 0 ] && [ "$code" = 0 ]; do
    { wait -n -p ended "${!running[@]}" || code=$?; } 2>/dev/null
    rank=${running[$ended]}
    unset "running[$ended]"
  done
  if [ "$code" != 0 ]; then
    say "rank $rank ended with exit code $code$([ "$code" -le 128 ] || echo " (signal $((code - 128)))"); the others are stopped"
    stop_processes "${!running[@]}"
  fi
  for ended in "${printers[@]}"; do while kill -0 "$ended" 2>/dev/null; do sleep 0.05; done; done
  trap - EXIT
  exit "$code"
}

# stop_processes PID...: those that have not ended by themselves after 15 s are killed.
stop_processes() {
  local tenths
  for ((tenths = 0; tenths < 150; ++tenths)); do
    [ $# -gt 0 ] && kill -0 "$@" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -9 "$@" 2>/dev/null || true
}

# A port of this machine that nobody listens at.
free_port() { "$(environment)/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
