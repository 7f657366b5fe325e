#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "tests/cuda_host/layer/grid.h"

// How work gets onto a stream of the fake runtime. Work runs when something waits for it; while the stream is captured, it goes
// into the graph.
namespace cuda_host {

// A kernel. Fails as a launch on a GPU does if there are too many or no threads or blocks.
cudaError_t launch(const Grid& grid, cudaStream_t stream, std::function<void()> thread);

// Any other work, which runs on the host as a whole.
void enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace cuda_host
