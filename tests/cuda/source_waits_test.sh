#!/usr/bin/env bash
# Checks that the library's sources contain no calls that wait for a device except those in source_waits.txt. Needs neither a GPU nor CUDA.
# usage: source_waits_test.sh REPOSITORY
set -euo pipefail
repository=$1
list=$repository/tests/cuda/source_waits.txt
calls='cuda(Device|Stream|Event)Synchronize|(\.|->)synchronize\(|device_synchronize|stream_synchronize'
calls+='|cudaMemcpy(2D|3D|ToSymbol|FromSymbol)?\(|cudaMalloc(Host|Managed)?\(|cudaFree(Host)?\(|cudaHost(Alloc|Register|Unregister)\('
# Reads a value of a tensor: waits if the tensor is on a GPU.
calls+='|\.item[<(]'

# waits FOLDER: prints the waiting calls in its apex_cpp/ and kernels/, comments excluded, in the format of the list.
waits() {
  (cd "$1" && find apex_cpp kernels -type f -exec awk -v OFS='\t' '{ sub("//.*", ""); print FILENAME, $0 }' {} + |
    grep -E "$calls" | while IFS=$'\t' read -r file line; do
      grep -oE "$calls" <<<"$line" | sed "s|^|$file |"
    done | sort | uniq -c | awk '{ print $2, $3, $1 }')
}

# as_listed FOLDER: succeeds if the folder's calls equal the list; otherwise prints the difference.
as_listed() { diff <(grep -v '^#' "$list" | LC_ALL=C sort) <(waits "$1" | LC_ALL=C sort); }

as_listed "$repository" || { echo "FAILED: calls that wait (> in the sources, < in $list)"; exit 1; }

# Tests the check itself: it notices an added and a removed wait and ignores a wait in a comment.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$repository/apex_cpp" "$repository/kernels" "$copy"
echo '// cudaDeviceSynchronize();' >"$copy/kernels/added.cpp"
as_listed "$copy" >/dev/null || { echo "FAILED: a comment was taken for a call"; exit 1; }
echo 'void f() { cudaDeviceSynchronize(); }' >"$copy/kernels/added.cpp"
! as_listed "$copy" >/dev/null || { echo "FAILED: an added wait was not noticed"; exit 1; }
rm "$copy/kernels/added.cpp" "$copy/kernels/cuda/device_memory.cpp"
! as_listed "$copy" >/dev/null || { echo "FAILED: a removed wait was not noticed"; exit 1; }
