#!/usr/bin/env bash
# tools/reference makes the reference without a warning, the first names of the library are in it, and a doc comment that does not
# fit is an error. usage: reference_test.sh REPOSITORY FOLDER
set -euo pipefail
out=$2
rm -rf "$out"
"$1/tools/reference" --out "$out"
for name in initialize scale_loss master_params save_checkpoint; do
  grep -q "</span>$name()" "$out/html/namespaceapex_1_1amp.html" ||
    { echo "the reference lacks amp::$name"; exit 1; }
done
printf '#pragma once\n/// A.\nstruct A {\n  /// B.\n  /// \\param b what there is not\n  void f(int a);\n};\n' >"$out/wrong.h"
if (cat "$1/tools/doxygen/Doxyfile"; echo "INPUT = $out/wrong.h"; echo "OUTPUT_DIRECTORY = $out/wrong") | doxygen - 2>"$out/wrong.log"; then
  echo "a doc comment of a parameter that there is not was accepted"
  exit 1
fi
grep -q "'b'" "$out/wrong.log"
