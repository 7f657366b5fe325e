# Shared by tools/setup, tools/train, tools/test and tools/bench; sourced, with the repository root as working directory.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${APEX_CPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/apex_cpp}
self=$(basename "$0")

say() { printf '%s: %s\n' "$self" "$*" >&2; }
die() { say "$*"; exit 1; }

# The Python environment of this requirements.txt: clones that pin the same wheels share it.
environment() { printf '%s/env-%s' "$cache" "$(sha256sum tools/requirements.txt | cut -c1-12)"; }

# The folder of requirements-safetensors.txt's packages, for the environment's Python to find by PYTHONPATH.
safetensors_packages() { printf '%s/safetensors-%s' "$cache" "$(sha256sum tools/requirements-safetensors.txt | cut -c1-12)"; }

# The CMAKE_PREFIX_PATH of the environment's LibTorch, noted when the environment was complete.
torch_prefix() { cat "$(environment)/complete"; }

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
build() {
  local preset=$1 tree=build/$1 prefix options=() fresh=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# = 0 ] || shift
  prefix=$(torch_prefix)
  # CMake remembers where it found torch: another environment needs a fresh start.
  [ "$(cat "$tree/torch-prefix" 2>/dev/null)" = "$prefix" ] || fresh=(--fresh)
  mkdir -p "$tree"
  say "configuring $tree"
  cmake --preset "$preset" "${fresh[@]}" "-DCMAKE_PREFIX_PATH=$prefix" "${options[@]}" >"$tree/configure.log" 2>&1 ||
    { cat "$tree/configure.log" >&2; die "configuring failed (log: $tree/configure.log)"; }
  echo "$prefix" >"$tree/torch-prefix"
  say "building $tree (${*:-everything}, $(compile_jobs) at a time)"
  NINJA_STATUS=$'\x01%f/%t/%e ' cmake --build --preset "$preset" --parallel "$(compile_jobs)" ${1:+--target "$@"} | show_progress ||
    die "the build failed"
}

# What a build of the programs needs of CUDA: APEX_CPP_CUDA, where the caller sets it; what the tree was made with; CUDA where
# there is a GPU. Its code needs a compiler of its own, and runs nowhere else.
cuda_for_programs() {
  if [ -n "${APEX_CPP_CUDA:-}" ]; then
    echo "-DAPEX_CPP_CUDA=$APEX_CPP_CUDA"
  elif ! grep -q '^APEX_CPP_CUDA:' build/release/CMakeCache.txt 2>/dev/null && ! nvidia-smi -L >/dev/null 2>&1; then
    echo -DAPEX_CPP_CUDA=OFF
  fi
}
