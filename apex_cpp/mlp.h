#pragma once
// apex.mlp for LibTorch.
#include <apex_cpp/mlp/mlp.h>
