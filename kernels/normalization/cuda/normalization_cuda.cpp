#include "kernels/normalization/cuda/normalization_cuda.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/normalization/cuda/launch.h"

namespace apex::kernels::normalization::cuda {
namespace {

template <class Kind, class Real>
void forward_as(const ForwardCall& call) {
  C10_CUDA_CHECK((launch_forward<Kind, Real>(forward_args<Real>(call), c10::cuda::getCurrentCUDAStream())));
}

template <class Real>
Real* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<Real>() : nullptr;
}

template <class Kind, class Real>
void affine_grads(const BackwardCall& call, const BackwardArgs<Real>& args, cudaStream_t stream) {
  const int64_t block_rows = rows_per_block(args.rows, args.size);
  const int64_t blocks = (args.rows + block_rows - 1) / block_rows;
  const auto sums_for = [&](const at::Tensor& grad) {
    return grad.defined() ? at::empty({blocks, args.size}, call.saved.inv_std.options()) : at::Tensor();
  };
  const at::Tensor weight = sums_for(call.out.weight), bias = sums_for(call.out.bias);
  const BlockSums<Real> sums{block_rows, blocks, data_of<Real>(weight), data_of<Real>(bias)};
  C10_CUDA_CHECK((launch_block_sums<Kind, Real>(args, sums, stream)));
  const auto total_in = [&](const at::Tensor& grad) {
    return grad.defined() ? target_of(grad, args.size) : Target{nullptr, Storage::float32, false};
  };
  C10_CUDA_CHECK(launch_totals(sums, args.size, total_in(call.out.weight), total_in(call.out.bias), stream));
}

template <class Kind, class Real>
void backward_as(const BackwardCall& call) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const BackwardArgs<Real> args = backward_args<Real>(call);
  if (call.out.input.defined()) C10_CUDA_CHECK((launch_grad_input<Kind, Real>(args, stream)));
  if (call.out.weight.defined() || call.out.bias.defined()) affine_grads<Kind>(call, args, stream);
}

}  // namespace

void forward(const ForwardCall& call) {
  const c10::cuda::CUDAGuard device(call.input.device());
  const bool is_double = call.out.inv_std.scalar_type() == at::kDouble;
  if (call.kind == NormKind::layer) {
    is_double ? forward_as<Layer, double>(call) : forward_as<Layer, float>(call);
  } else {
    is_double ? forward_as<Rms, double>(call) : forward_as<Rms, float>(call);
  }
}

void backward(const BackwardCall& call) {
  const c10::cuda::CUDAGuard device(call.grad_output.device());
  const bool is_double = call.saved.inv_std.scalar_type() == at::kDouble;
  if (call.kind == NormKind::layer) {
    is_double ? backward_as<Layer, double>(call) : backward_as<Layer, float>(call);
  } else {
    is_double ? backward_as<Rms, double>(call) : backward_as<Rms, float>(call);
  }
}

}  // namespace apex::kernels::normalization::cuda
