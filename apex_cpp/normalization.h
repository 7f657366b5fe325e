#pragma once
// apex.normalization for LibTorch: layer and RMS normalisation with fused kernels.
#include <apex_cpp/normalization/functional.h>
#include <apex_cpp/normalization/modules.h>
