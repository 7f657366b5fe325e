#pragma once

#include <apex_cpp/multi_tensor_apply.h>

// One step of Lion over a chunk of each list: grads and params of type T, exp_avgs of float.
//
// It is written like Apex's own functors. A port from Apex changes three things:
// - The operator is C10_HOST_DEVICE instead of __device__ __forceinline__, so that it also runs on CPU tensors.
// - `Chunk` replaces the first lines of an Apex functor, which look up tensor and chunk by blockIdx.x and offset a pointer for
// each list (`chunk.data<T>(list)`). Its offsets have 64 bits.
// - One loop over `chunk.elements()` replaces the loops over ILP elements at threadIdx.x + ii * blockDim.x.
// Arguments, `noop_flag` and the arithmetic stay the same.
template <class T>
struct LionFunctor {
  C10_HOST_DEVICE void operator()(int chunk_size, volatile int* noop_flag, TensorListMetadata<3>& tl, float lr, float beta1,
                                  float beta2, float weight_decay) const {
    if (*noop_flag) return;  // the gradients overflowed
    const apex::amp_C::Chunk chunk(tl, chunk_size);
    const T* grad = chunk.template data<T>(0);
    T* param = chunk.template data<T>(1);
    float* exp_avg = chunk.template data<float>(2);
    for (int64_t i : chunk.elements()) {
      const float g = static_cast<float>(grad[i]);
      const float p = static_cast<float>(param[i]);
      const float direction = beta1 * exp_avg[i] + (1 - beta1) * g;
      const float sign = static_cast<float>((direction > 0) - (direction < 0));
      param[i] = static_cast<T>(p - lr * (sign + weight_decay * p));
      exp_avg[i] = beta2 * exp_avg[i] + (1 - beta2) * g;
    }
  }
};
