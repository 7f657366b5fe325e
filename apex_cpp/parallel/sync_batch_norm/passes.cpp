#include <apex_cpp/parallel/sync_batch_norm/passes.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include <apex_cpp/parallel/sync_batch_norm/rows.h>

namespace apex::parallel::detail {
namespace {

// What is written by one operator and read by the next is this much at a time.
constexpr int64_t kValuesInCache = 1 << 18;

// LibTorch's batch norm as it is in evaluation: one vectorized pass. `shift`, which is added, may be undefined.
void write_centred(const at::Tensor& input, const Centring& centring, const at::Tensor& shift, at::Tensor& output) {
  const auto variance = at::ones_like(centring.mean);
  auto unused_mean = at::empty({0}, centring.mean.options()), unused_inv_std = at::empty_like(unused_mean);
  at::native_batch_norm_out(output, unused_mean, unused_inv_std, input, centring.scale, shift, centring.mean, variance,
                            /*training=*/false, /*momentum=*/0, /*eps=*/0);
}

// As [1, C, 1, ...], for a batch of `dims` dimensions.
at::Tensor along_channels(const at::Tensor& values, int64_t dims) {
  std::vector<int64_t> shape(static_cast<size_t>(dims), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// A 16-bit product would round the scale too, which the mean is multiplied with: there `b` is centred apart.
void write_sum_of_centred(const at::Tensor& a, const Centring& of_a, const at::Tensor& b, const Centring& of_b,
                          at::Tensor sum) {
  if (sum.scalar_type() == of_b.scale.scalar_type()) {
    write_centred(a, of_a, of_b.mean.mul(of_b.scale).neg(), sum);
    sum.addcmul_(b, along_channels(of_b.scale, b.dim()));
  } else {
    write_centred(a, of_a, {}, sum);
    auto other = at::empty_like(sum);
    write_centred(b, of_b, {}, other);
    sum.add_(other);
  }
}

// To sums.grad_deviation is added what is yet to be divided by inv_std.
void add_sums_of_part(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inv_std,
                      GradSums& sums) {
  const auto channels = mean.numel(), groups = input.size(1) / channels;
  const auto means = mean.repeat(groups);
  const auto [none, grad_weight, grad_bias] = at::native_batch_norm_backward(
      grad, input, at::ones_like(means), /*running_mean=*/{}, /*running_var=*/{}, means, inv_std.repeat(groups),
      /*train=*/true, /*eps=*/0, std::array<bool, 3>{false, true, true});
  const auto by_group = [&](const at::Tensor& values) { return values.to(at::kDouble).view({-1, channels}).sum(0); };
  sums.grad.add_(by_group(grad_bias));
  sums.grad_deviation.add_(by_group(grad_weight));
}

}  // namespace

at::Tensor in_kernel_layout(const at::Tensor& input) {
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    const int64_t dim = format == at::MemoryFormat::ChannelsLast ? 4 : 5;
    if (input.dim() == dim && input.is_contiguous(format)) return input;
  }
  return input.contiguous();
}

at::Tensor sum_of_centred(const at::Tensor& a, const Centring& of_a, const at::Tensor& b, const Centring& of_b) {
  auto sum = at::empty_like(a);
  const int64_t samples = std::max<int64_t>(1, kValuesInCache * a.size(0) / a.numel());
  for (int64_t start = 0; start < a.size(0); start += samples) {
    const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, start, std::min(samples, whole.size(0) - start)); };
    write_sum_of_centred(part(a), of_a, part(b), of_b, part(sum));
  }
  return sum;
}

GradSums sums_of_grad(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inv_std) {
  GradSums sums{at::zeros_like(mean, at::kDouble), at::zeros_like(mean, at::kDouble)};
  if (input.numel() == 0) return sums;
  const auto grads = parts_of(grad, input), inputs = parts_of(input, input);
  for (size_t i = 0; i < inputs.size(); ++i) add_sums_of_part(grads[i], inputs[i], mean, inv_std, sums);
  sums.grad_deviation.div_(inv_std);
  return sums;
}

}  // namespace apex::parallel::detail
