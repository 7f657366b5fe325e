#!/usr/bin/env bash
# usage: archives_test.sh BUILD_TREE COMPILER FOLDER    makes the Debian package and the archive, and checks their contents and
# which library of the archive find_package chooses on a machine without yaml-cpp
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
build=$1 compiler=$2 folder=$3
for tool in dpkg-shlibdeps file; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is missing, which tools/setup --packages installs"; exit 77; }
done
rm -rf "$folder"
export SOURCE_DATE_EPOCH=1000000000
for kind in DEB TGZ; do cpack --config "$build/CPackConfig.cmake" -G "$kind" -B "$folder" >/dev/null; done
cpack --config "$build/CPackConfig.cmake" -G TGZ -B "$folder/again" >/dev/null
deb=("$folder"/apex-cpp_*.deb) archive=("$folder"/apex-cpp-*.tar.gz)
cmp "${archive[0]}" "$folder"/again/apex-cpp-*.tar.gz || die "two archives of one build differ"

holds() {  # LISTING PATTERN...
  local listing=$1 pattern
  for pattern in "${@:2}"; do grep -qE "$pattern" <<<"$listing" || { echo "nothing in it matches $pattern"; exit 1; }; done
}
common=('/lib/libapex_cpp\.so\.[0-9]+\.[0-9]+$' '/lib/libapex_cpp\.a$' '/lib/cmake/apex_cpp/apex_cpp-config\.cmake$'
  '/lib/pkgconfig/apex_cpp\.pc$' '/include/apex_cpp-[0-9.]+/apex_cpp/amp\.h$' '/LICENSE$' '/THIRD_PARTY_NOTICES$'
  '/apex_cpp\.cdx\.json$')
listing=$(dpkg-deb -c "${deb[0]}")
holds "$listing" "${common[@]}"
! grep -q yaml-cpp <<<"$listing" || { echo "the Debian package brings what Debian has: yaml-cpp"; exit 1; }
holds "$(dpkg-deb -f "${deb[0]}" Depends)" 'libyaml-cpp' 'libstdc\+\+6' 'libc6'
holds "$(dpkg-deb -f "${deb[0]}" Version)" '\+torch[0-9]+\.[0-9]+\.(cpu|cu[0-9]+)$'
holds "$(tar tzf "${archive[0]}")" "${common[@]}" '/lib/libyaml-cpp\.so\.[0-9.]+$'

mkdir "$folder/unpacked"
tar xzf "${archive[0]}" -C "$folder/unpacked" --strip-components=1
# expect_without_yaml_cpp TEXT OPTION...: configuring prints the text.
expect_without_yaml_cpp() {
  cmake -G Ninja -S tests/package/kinds -B "$folder/kinds" --fresh "-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_PREFIX_PATH=$(torch_prefix)" \
    "-Dapex_cpp_ROOT=$folder/unpacked" -DCMAKE_DISABLE_FIND_PACKAGE_yaml-cpp=ON "${@:2}" >"$folder/log" 2>&1 || true
  tr -s ' \n' ' ' <"$folder/log" | grep -qF "$1" || { cat "$folder/log"; die "expected '$1' with ${*:2}"; }
}
expect_without_yaml_cpp "found SHARED_LIBRARY"
expect_without_yaml_cpp "find_package for module yaml-cpp called with REQUIRED" -DKIND=static
expect_without_yaml_cpp "find_package for module yaml-cpp called with REQUIRED" -Dapex_cpp_SHARED_LIBS=OFF
