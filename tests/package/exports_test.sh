#!/usr/bin/env bash
# usage: exports_test.sh LIBRARY    fails if the shared library exports a name that is not public, or lacks a public name
set -euo pipefail
names=$(nm -D --defined-only "$1" | cut -d' ' -f3- | c++filt)
public='^((typeinfo|typeinfo name|vtable|VTT|construction vtable|guard variable|TLS (init|wrapper) function) for |(virtual|non-virtual) thunk to )?apex::'
upstream='^(multi_tensor_[a-z0-9_]+|update_scale_hysteresis)_cuda\('
# Of the kernels only kernels/multi_tensor.h is installed.
header=$(dirname "${BASH_SOURCE[0]}")/../../kernels/multi_tensor.h
functions=$(grep -oE '\bmulti_tensor_[a-z0-9_]+\(' "$header" | tr -d '(' | sort -u)
kernels="^apex::kernels::($(paste -sd'|' <<<"$functions"))\("

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
for function in $functions; do
  grep -q "^apex::kernels::$function(" <<<"$names" || complain "not exported: apex::kernels::$function, which kernels/multi_tensor.h declares"
done
soname=$(readelf -d "$1" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
[[ $soname =~ ^libapex_cpp\.so\.[0-9]+\.[0-9]+$ ]] || complain "its soname is '$soname'"
[ -z "$failed" ]
