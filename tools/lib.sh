# Shared by the commands of tools/; sourced. It leaves the repository root as working directory, from which builds are made; what runs
# programs works in any.
unset CDPATH  # with it `cd` prints where it went
command_file=$(readlink -f "$0")
caller=$PWD  # what paths in the arguments are relative to
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
self=$(basename "$0")

say() { printf '%s: %s\n' "$self" "$*" >&2; }
die() { say "$*"; exit 1; }

# answer_help MORE ARGUMENT...: where an argument asks for help, prints it and ends, before anything is set up or built: the comment that
# the command's file begins with, then the file MORE, the help of the program that takes the other arguments. Or MORE is a Python script
# that prints all of its help. '': the comment is all.
answer_help() {
  local more=$1
  shift
  case " $* " in *" -h "* | *" --help "*) ;; *) return 0 ;; esac
  case $more in *.py) ! command -v python3 >/dev/null || exec env PYTHONDONTWRITEBYTECODE=1 python3 "$more" --help ;; esac
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$command_file"
  case $more in *.txt) echo; cat "$more" ;; esac
  exit 0
}

[ -n "${APEX_CPP_CACHE:-}${XDG_CACHE_HOME:-}${HOME:-}" ] || die "HOME is not set: set it, or APEX_CPP_CACHE to the cache folder"
cache=${APEX_CPP_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/apex_cpp}
# Relative to the caller's folder; what this command starts may run in another one.
case $cache in /*) ;; *) cache=$caller/$cache; export APEX_CPP_CACHE=$cache ;; esac

# The Python environment of this requirements.txt: clones that pin the same wheels share it. torch_environment, where a tool sets it,
# is another one.
environment() { printf '%s' "${torch_environment:-$cache/env-$(sha256sum "$root/tools/requirements.txt" | cut -c1-12)}"; }

# python_packages NAME: the folder of requirements-NAME.txt's packages: an environment, or one that Python finds by PYTHONPATH.
python_packages() { printf '%s/%s-%s' "$cache" "$1" "$(sha256sum "$root/tools/requirements-$1.txt" | cut -c1-12)"; }

# The CMAKE_PREFIX_PATH of the environment's LibTorch, noted when the environment was complete: a path in it, wherever the cache has been
# moved or copied since.
torch_prefix() {
  local env prefix
  env=$(environment)
  prefix=$(cat "$env/complete") || return
  echo "${prefix/#*"/${env##*/}/"/"$env/"}"
}

# Debian packages of packages.txt are looked for here.
system_prefixes=(/usr /usr/local)

# The system's cmake and ninja, otherwise those that tools/setup takes from PyPI.
has_build_programs() { command -v cmake >/dev/null && command -v ninja >/dev/null; }
has_build_programs || PATH=$PATH:$(python_packages build)/bin

# in_system FILE FOLDER...: is the file in one of these folders of a prefix?
in_system() {
  local prefix folder
  for prefix in "${system_prefixes[@]}"; do
    for folder in "${@:2}"; do [ ! -e "$prefix/$folder/$1" ] || return 0; done
  done
  return 1
}

# present PROBE: is the command, file or Python module of packages.txt there?
present() {
  case $1 in
    include/*) in_system "${1#include/}" include ;;
    lib/*) in_system "${1#lib/}" "lib/$(uname -m)-linux-gnu" lib64 lib ;;
    ensurepip) "$(system_python)" -c 'import ensurepip' 2>/dev/null ;;
    python3) system_python >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# missing KIND: the Debian packages of that kind of packages.txt whose probe fails.
missing() {
  local package probe version kind _
  while read -r package probe version kind _; do
    [ "$kind" != "$1" ] || present "$probe" || echo "$package"
  done < <(grep -v '^#' "$root/tools/packages.txt")
}

make_cache() { mkdir -p "$cache" || die "cannot make the cache folder $cache: set APEX_CPP_CACHE to a folder that can be written"; }

# make_work FOLDER: $work, a folder in this one for temporary files, which goes when the tool ends.
work=
make_work() {
  trap 'rm -rf "$work"' EXIT
  work=$(mktemp -d "$1/$self.XXXXXX") || die "cannot make a temporary folder in $1"
}

# An interpreter that the pinned wheels are for. The system's own goes first: a version manager's may vanish.
system_python() {
  local python
  for python in {/usr/bin/,}python3.{11,12,13}; do ! command -v "$python" || return 0; done
  return 1
}

# packages_folder ENVIRONMENT: where its Python packages are.
packages_folder() { printf '%s' "$1"/lib/python3.*/site-packages; }

# repair_python FOLDER: where the cache was moved or copied, the scripts of the Python environment still name its old place.
repair_python() {
  local old
  old=$(sed -n 's/^command = .* -m venv \(--without-pip \)\?//p' "$1/pyvenv.cfg" 2>/dev/null) || return 0
  [ -n "$old" ] && ! [ "$old" -ef "$1" ] && [ -w "$1/pyvenv.cfg" ] || return 0
  say "repairing the scripts of $1, which were made for $old"
  find "$1/bin" -type f -exec grep -IlF "$old" {} + | while IFS= read -r script; do
    sed -i "s|$old|$1|g" "$script"
  done
  sed -i "s|$old|$1|g" "$1/pyvenv.cfg"
}

# new_environment PYTHON FOLDER: an empty environment with pip.
new_environment() {
  if "$1" -c 'import ensurepip' 2>/dev/null; then
    "$1" -m venv "$2"
  else
    "$1" -m venv --without-pip "$2"
    "$2/bin/python" "$root/tools/install_pip.py" "$root/tools/requirements-pip.txt" "$work"
  fi
}

# make_python FOLDER WHAT COMMAND...: the Python environment FOLDER, by one process at a time, unless it is complete. The command installs
# into it; what that prints is kept in FOLDER/complete.
make_python() {
  local python
  [ ! -e "$1/complete" ] || { repair_python "$1"; return 0; }
  make_cache
  { exec 8>"$1-lock"; } 2>/dev/null || die "$1 is missing, and the cache folder cannot be written: set APEX_CPP_CACHE to one that can be"
  flock -n 8 || { say "waiting for another process that makes $1"; flock 8; }
  if [ ! -e "$1/complete" ]; then
    python=$(system_python) || die "Python 3.11, 3.12 or 3.13 is missing: run tools/setup first"
    [ -n "$work" ] || make_work "$cache"
    say "making a Python environment with $2 in $1"
    rm -rf "$1"
    new_environment "$python" "$1"
    "${@:3}" >"$work/complete"
    mv "$work/complete" "$1/complete"
  fi
  exec 8>&-
}

# run_pip FOLDER COMMAND ARGUMENTS...: the pip of an environment. Its temporary files (up to 5 GB) stay beside the cache, in $work. -I: it does
# not see the packages of PYTHONPATH.
run_pip() {
  local shows=--quiet
  [ ! -t 2 ] || [ -n "${in_background:-}" ] || shows=--progress-bar=on
  TMPDIR=$work "$1/bin/python" -I -m pip --disable-pip-version-check --no-input "$2" --no-cache-dir "$shows" "${@:3}" >&2
}

# pip_pinned FOLDER COMMAND REQUIREMENTS ARGUMENTS...: the same with the packages of a requirements file, and no others.
pip_pinned() {
  run_pip "$1" "$2" --no-deps --require-hashes -r "$3" "${@:4}" ||
    die "pip could not $2 $3 (its message is above); run this again when the registry can be reached"
}

# print_torch_prefix FOLDER: asks the torch of an environment, whatever torch PYTHONPATH leads to.
print_torch_prefix() { "$1/bin/python" -I -W ignore -c 'import torch; print(torch.utils.cmake_prefix_path)'; }

# use_other_torch X.Y.Z: has a tool build with this torch from PyPI, in a build tree and an environment of their own. Such builds set
# APEX_CPP_WERROR=OFF: another torch may deprecate functions.
use_other_torch() {
  torch=$1
  [[ $torch =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "--torch takes a version of three numbers, not '$torch'"
  torch_environment=$cache/env-torch-$torch
  build_tree=build/torch-$torch
}

# Makes that environment, with the dependencies that torch's wheels declare. Only the tested version is pinned with hashes.
make_other_torch() { make_python "$torch_environment" "torch $torch (3 GB to download)" install_other_torch; }
install_other_torch() {
  run_pip "$torch_environment" install "torch==$torch" || die "pip could not install torch $torch (its message is above)"
  pip_pinned "$torch_environment" install tools/requirements-thrust.txt
  print_torch_prefix "$torch_environment"
}

# use_aarch64: has a tool build for 64-bit ARM on another machine.
use_aarch64() {
  torch_environment=$(environment)-aarch64
  build_tree=build/aarch64
}

# Makes that environment: the wheels of ARM, beside an interpreter of this machine.
make_aarch64_torch() { make_python "$torch_environment" "torch for aarch64 (1.9 GB to download, 3.6 GB on disk)" install_aarch64_torch; }
install_aarch64_torch() {
  local glibc platforms=()
  for glibc in 17 18 24 25 26 27 28; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  pip_pinned "$torch_environment" install tools/requirements.txt -r tools/requirements-thrust.txt --no-compile --only-binary=:all: \
    --python-version 3.11 "${platforms[@]}" --platform manylinux2014_aarch64 --target "$torch_environment/aarch64"
  echo "$torch_environment/aarch64/torch/share/cmake"
}

# tool_python NAME WHAT: the interpreter of an environment of Python alone with the packages of requirements-NAME.txt.
tool_python() {
  local env requirements=$root/tools/requirements-$1.txt
  env=$(python_packages "$1")
  make_python "$env" "$2" pip_pinned "$env" install "$requirements"
  echo "$env/bin/python"
}

# The interpreter that plots and reports are made with.
report_python() { tool_python plot "matplotlib and jinja2 (50 MB to download)"; }

# The interpreter of tools/port_check.
port_check_python() { tool_python port_check "PyYAML and tree-sitter (2 MB to download)"; }

# The interpreter that packages are made with.
package_python() { tool_python package "setuptools and auditwheel (2 MB to download)"; }

# The interpreter of tools/bench machine_code. Its environment has the programs that read machine code, too.
machine_code_python() { tool_python machine_code "cuobjdump and nvdisasm (5 MB to download)"; }

# The interpreter of gcovr, for tools/test --coverage.
coverage_python() { tool_python coverage "gcovr (7 MB to download)"; }

# An interpreter beside cmake and ninja.
build_python() { tool_python build "cmake and ninja (28 MB to download)"; }

# The interpreters of tools/lint and of tools/lint --tidy.
lint_python() { tool_python lint "clang-format, codespell, flake8, shellcheck and check-jsonschema (8 MB to download)"; }
tidy_python() { tool_python tidy "clang-tidy (44 MB to download)"; }

# The date of the files in packages: of the last commit, so that equal sources make equal packages.
source_date() { echo "${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 315532800)}"; }

# The path of the CUDA toolkit's nvcc; nothing where there is none.
find_nvcc() {
  local nvcc
  for nvcc in "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ ! -x "$nvcc" ] || { readlink -f "$nvcc"; return; }
  done
}

# As many compilers as there are cores and memory for: one that reads torch's headers takes up to 2 GB.
compile_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemTotal/ { print int($2 / 2000000) + 1 }' /proc/meminfo)
  echo "${CMAKE_BUILD_PARALLEL_LEVEL:-$((cores < memory ? cores : memory))}"
}

# Passes a build's output on, and shows how far it is: on a terminal in one line that is rewritten, else every 15 s. Steps come in as
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

# configure PRESET OPTION...: configures build/PRESET with these options of cmake. build_tree, where a tool sets it, is the tree in place of
# build/PRESET.
configure() {
  local preset=$1 tree=${build_tree:-build/$1} prefix fresh=()
  prefix=$(torch_prefix)
  # CMake remembers where it found torch: another environment needs a fresh start.
  [ "$(cat "$tree/torch-prefix" 2>/dev/null)" = "$prefix" ] || fresh=(--fresh)
  mkdir -p "$tree"
  say "configuring $tree"
  cmake --preset "$preset" -B "$tree" "${fresh[@]}" "-DCMAKE_PREFIX_PATH=$prefix" "${@:2}" >"$tree/configure.log" 2>&1 ||
    { cat "$tree/configure.log" >&2; die "configuring failed (log: $tree/configure.log)"; }
  echo "$prefix" >"$tree/torch-prefix"
}

# ccache fails if it cannot write its folder, as in a home that is read-only.
choose_ccache_folder() {
  local folder
  [ -z "${CCACHE_DIR:-}" ] && folder=$(ccache -k cache_dir 2>/dev/null) || return 0
  if mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ]; then return; fi
  if [ -w "$cache" ]; then export CCACHE_DIR=$cache/ccache; else export CCACHE_DISABLE=1; fi
}

# build PRESET OPTION... [-- TARGET...]: configures build/PRESET, or build_tree, and builds it, all of it or the targets. One command at a time:
# neither cmake nor ninja keeps others out of its tree.
build() {
  local preset=$1 tree=${build_tree:-build/$1} options=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# = 0 ] || shift
  choose_ccache_folder
  mkdir -p "${tree%/*}"
  exec 7>"$tree.lock"
  flock -n 7 || { say "waiting for another command that builds $tree"; flock 7; }
  configure "$preset" "${options[@]}"
  say "building $tree (${*:-everything}, $(compile_jobs) at a time)"
  NINJA_STATUS=$'\x01%f/%t/%e ' cmake --build "$tree" --parallel "$(compile_jobs)" ${1:+--target "$@"} | show_progress ||
    die "the build failed"
  exec 7>&-
}

has_gpu() { nvidia-smi -L >/dev/null 2>&1; }

# What a build of the programs needs of CUDA: APEX_CPP_CUDA, where the caller sets it; what the tree was made with; CUDA where
# there is a GPU. Its code needs a compiler of its own, and runs nowhere else.
cuda_for_programs() {
  local made_with
  made_with=$(sed -n 's/^APEX_CPP_CUDA:[A-Z]*=//p' build/release/CMakeCache.txt 2>/dev/null || true)
  if [ -n "${APEX_CPP_CUDA:-$made_with}" ]; then
    echo "-DAPEX_CPP_CUDA=${APEX_CPP_CUDA:-$made_with}"
  elif ! has_gpu; then
    echo -DAPEX_CPP_CUDA=OFF
  fi
}

# prepare_to_train: what programs that train run with, and the folder that paths in the arguments and in configs are relative to.
prepare_to_train() {
  export APEX_CPP_DATA=${APEX_CPP_DATA:-$cache/data}
  # Threads that wait sleep: beside other work on the machine, spinning ones keep those from running that they wait for. On a machine
  # with nothing else to do OMP_WAIT_POLICY=ACTIVE is faster, for small networks up to twice.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
  cd "$caller"
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
