#pragma once
// apex.fused_dense for LibTorch.
#include <apex_cpp/fused_dense/fused_dense.h>
