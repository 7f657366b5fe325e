#pragma once
// apex.parallel for LibTorch.
#include <apex_cpp/parallel/larc.h>
