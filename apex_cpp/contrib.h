#pragma once
// From apex.contrib, for LibTorch: gradient clipping and softmax cross entropy with fused kernels.
#include <apex_cpp/contrib/clip_grad.h>
#include <apex_cpp/contrib/xentropy.h>
