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

# build PRESET [TARGET...]: configures build/PRESET and builds it, all of it or the targets.
build() {
  local preset=$1 tree=build/$1 prefix fresh=()
  shift
  prefix=$(torch_prefix)
  # CMake remembers where it found torch: another environment needs a fresh start.
  [ "$(cat "$tree/torch-prefix" 2>/dev/null)" = "$prefix" ] || fresh=(--fresh)
  mkdir -p "$tree"
  say "configuring $tree"
  # Without a GPU, CUDA code is there to be compiled: once is enough.
  cmake --preset "$preset" "${fresh[@]}" "-DCMAKE_PREFIX_PATH=$prefix" -DAPEX_CPP_CUDA_WITHOUT_GPU=8.0+PTX \
    >"$tree/configure.log" 2>&1 ||
    { cat "$tree/configure.log" >&2; die "configuring failed (log: $tree/configure.log)"; }
  echo "$prefix" >"$tree/torch-prefix"
  say "building $tree (${*:-everything}, $(compile_jobs) at a time)"
  cmake --build --preset "$preset" --parallel "$(compile_jobs)" ${1:+--target "$@"} || die "the build failed"
}
