#pragma once
// Replaces Thrust's header where a .cu file is compiled for the host: a policy whose for_each_n runs in the order of a stream.
#include <thrust/execution_policy.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/system_error.h>

#include "tests/cuda_host/runtime/launch.h"

namespace cuda_host {

struct OnStream : thrust::system::cpp::execution_policy<OnStream> {
  cudaStream_t stream;
};

template <class Iterator, class Size, class Function>
Iterator for_each_n(const OnStream& policy, Iterator first, Size count, Function function) {
  enqueue(policy.stream, [=] {
    for (Size i = 0; i < count; ++i) function(first[i]);
  });
  return first + count;
}

struct AnyStream {
  OnStream on(cudaStream_t stream) const {
    OnStream policy;
    policy.stream = stream;
    return policy;
  }
};

}  // namespace cuda_host

namespace thrust::cuda {
inline constexpr cuda_host::AnyStream par_nosync{};
}  // namespace thrust::cuda
