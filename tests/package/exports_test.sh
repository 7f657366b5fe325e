#!/usr/bin/env bash
# usage: exports_test.sh LIBRARY TORCH_VERSION   fails if the shared library exports a name that is not public, or lacks a public name
#        exports_test.sh LIBRARY --update          writes exports.txt, the public functions
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
names=$(nm -D --defined-only "$1" | cut -d' ' -f3- | c++filt)
# Functions that programs link to, with their parameters: not templates and inline functions, which a program has of its own.
functions=$(nm -D --defined-only "$1" | sed -n 's/^[0-9a-f]* T //p' | c++filt | grep -vE '::detail::|apex::kernels::| thunk to ' | LC_ALL=C sort -u)
[ "${2:-}" != --update ] || { printf '%s\n' "$functions" >"$here/exports.txt" && exit; }
public='^((typeinfo|typeinfo name|vtable|VTT|construction vtable|guard variable|TLS (init|wrapper) function) for |(virtual|non-virtual) thunk to )?apex::'
upstream='^(multi_tensor_[a-z0-9_]+|update_scale_hysteresis)_cuda\('
# Of the kernels only kernels/multi_tensor.h is installed.
header=$here/../../kernels/multi_tensor.h
multi_tensor=$(grep -oE '\bmulti_tensor_[a-z0-9_]+\(' "$header" | tr -d '(' | sort -u)
kernels="^apex::kernels::($(paste -sd'|' <<<"$multi_tensor"))\("

failed=
complain() { echo "$1"; failed=1; }
foreign=$(grep -vE "$public|$upstream" <<<"$names" || true)
[ -z "$foreign" ] || complain "exported, but not of apex_cpp: $foreign"
inner=$(grep -E '^[^(]*\bapex::kernels::' <<<"$names" | grep -vE "$kernels" || true)
[ -z "$inner" ] || complain "exported, and not public: $inner"
for name in 'apex::amp::state_dict(' 'apex::opt_levels::OptLevel::named(' 'apex::opt_levels::' 'apex::optimizers::FusedAdam::' \
  'apex::fp16_utils::' 'apex::normalization::' 'apex::parallel::init_process_group(' 'typeinfo for apex::' \
  'multi_tensor_scale_cuda(' 'update_scale_hysteresis_cuda('; do
  grep -qF "$name" <<<"$names" || complain "not exported: $name"
done
for function in $multi_tensor; do
  grep -q "^apex::kernels::$function(" <<<"$names" || complain "not exported: apex::kernels::$function, which kernels/multi_tensor.h declares"
done
soname=$(readelf -d "$1" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
# Programs that were built with a function do not start without it. Another torch may spell its types differently.
if [[ "$(sed -n 's/^torch==//p' "$here/../../tools/requirements.txt")" = "$2"* ]]; then
  gone=$(LC_ALL=C comm -23 "$here/exports.txt" - <<<"$functions")
  [ -z "$gone" ] || complain "no longer exported: keep what programs may call, or raise the minor version, which is the soname's. Then run $0 $1 --update: $gone"
  new=$(LC_ALL=C comm -13 "$here/exports.txt" - <<<"$functions")
  [ -z "$new" ] || complain "exported, and not in exports.txt: run $0 $1 --update: $new"
fi
[[ $soname =~ ^libapex_cpp\.so\.[0-9]+\.[0-9]+$ ]] || complain "its soname is '$soname'"
[ -z "$failed" ]
