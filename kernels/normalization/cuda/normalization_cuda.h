#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/normalization/cuda/columns.h"
#include "kernels/normalization/normalization.h"

// The driver for CUDA tensors: one launch forward, up to four backward, on the current stream. Gives the same bits as the CPU.
namespace apex::kernels::normalization::cuda {

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::normalization::cuda

// Makes kernel arguments from tensors. Uses no CUDA, so tests on the host can include it.
namespace apex::kernels::normalization::cuda {

inline Storage storage_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return Storage::half;
    case at::kBFloat16:
      return Storage::bfloat16;
    case at::kDouble:
      return Storage::float64;
    default:
      return Storage::float32;
  }
}

// True if every row starts at the alignment of a pair access.
inline bool by_pairs(const at::Tensor& tensor, int64_t size) {
  const auto bytes = std::min<int64_t>(16, kPair * static_cast<int64_t>(tensor.element_size()));
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return size % kPair == 0 && address % static_cast<uintptr_t>(bytes) == 0;
}

inline Source source_of(const at::Tensor& tensor, int64_t size) {
  if (!tensor.defined()) return {nullptr, Storage::float32, false};
  return {tensor.const_data_ptr(), storage_of(tensor.scalar_type()), by_pairs(tensor, size)};
}

inline Target target_of(const at::Tensor& tensor, int64_t size) {
  return {tensor.mutable_data_ptr(), storage_of(tensor.scalar_type()), by_pairs(tensor, size)};
}

// Absent tensors do not matter.
inline Mix mix_of(const Source& first, std::initializer_list<Source> others, const Target& target) {
  const auto fits = [&](const auto& tensor) {
    return tensor.data == nullptr || (tensor.storage == first.storage && tensor.by_pairs);
  };
  if (!fits(first) || !std::all_of(others.begin(), others.end(), fits) || !fits(target)) return Mix::any;
  return first.storage == Storage::half       ? Mix::half
         : first.storage == Storage::bfloat16 ? Mix::bfloat16
         : first.storage == Storage::float32  ? Mix::float32
                                              : Mix::any;
}

template <class Real>
ForwardArgs<Real> forward_args(const ForwardCall& call) {
  const int64_t size = call.shape.size;
  ForwardArgs<Real> args{call.shape.rows,
                         size,
                         source_of(call.input, size),
                         source_of(call.affine.weight, size),
                         source_of(call.affine.bias, size),
                         target_of(call.out.output, size),
                         call.out.mean.defined() ? call.out.mean.mutable_data_ptr<Real>() : nullptr,
                         call.out.inv_std.mutable_data_ptr<Real>(),
                         static_cast<Real>(call.eps),
                         Mix::any};
  args.mix = mix_of(args.input, {args.weight, args.bias}, args.output);
  return args;
}

template <class Real>
BackwardArgs<Real> backward_args(const BackwardCall& call) {
  const int64_t size = call.shape.size;
  BackwardArgs<Real> args{call.shape.rows,
                          size,
                          source_of(call.grad_output, size),
                          source_of(call.saved.input_or_output, size),
                          source_of(call.affine.weight, size),
                          source_of(call.affine.bias, size),
                          call.saved.mean.defined() ? call.saved.mean.const_data_ptr<Real>() : nullptr,
                          call.saved.inv_std.const_data_ptr<Real>(),
                          call.saved.is_output,
                          static_cast<Real>(call.saved.eps),
                          call.out.input.defined() ? target_of(call.out.input, size) : Target{nullptr, Storage::float32, false},
                          Mix::any};
  if (!args.from_output) args.mix = mix_of(args.grad_output, {args.input_or_output, args.weight, args.bias}, args.grad_input);
  return args;
}

}  // namespace apex::kernels::normalization::cuda
