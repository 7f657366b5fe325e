#pragma once

// LibTorch with CUDA tensors, but without libtorch_cuda and without a GPU: backend.cpp has the operators, hooks.cpp the rest.
namespace cuda_host {

// Whether this is the start of pinned memory.
bool is_pinned(const void* address);

}  // namespace cuda_host
