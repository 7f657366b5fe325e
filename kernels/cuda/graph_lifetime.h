#pragma once

#include <c10/cuda/CUDAStream.h>

#include <memory>

namespace apex::kernels::cuda {

// Whether work on the stream becomes a part of a CUDA graph.
bool is_capturing(c10::cuda::CUDAStream stream);

// Keeps an object alive as long as the graph that the stream is captured in, or anything made from that graph.
void keep_with_graph(c10::cuda::CUDAStream stream, std::shared_ptr<const void> object);

// Frees what was kept with graphs that are gone: their end is told where CUDA must not be called.
void free_released();

}  // namespace apex::kernels::cuda
