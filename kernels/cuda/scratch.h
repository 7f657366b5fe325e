#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace apex::kernels::cuda {

// The memory that launches over one table work in: sums and tickets. Launches on one stream follow one another and share it.
// Those on another may run at the same time, and so may graphs, which run on whatever stream they are launched on: each
// captured launch has memory of its own.
class Scratch {
 public:
  // make() for a captured launch, and for the first of each stream.
  template <class Make>
  at::Tensor of_launch(int64_t stream, bool captured, const Make& make) {
    if (captured) return make();
    at::Tensor& kept = by_stream_[stream];
    if (!kept.defined()) kept = make();
    return kept;
  }

 private:
  std::unordered_map<int64_t, at::Tensor> by_stream_;
};

}  // namespace apex::kernels::cuda
