#include <apex_cpp/parallel/sync_batch_norm/batch_norm_autograd.h>

#include <ATen/Context.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/sync_batch_norm/batch_statistics.h>

namespace apex::parallel::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

// What the forward pass saves for the backward pass. Tensors of [C] in the arithmetic dtype; the count in float64.
struct SavedNorm {
  at::Tensor input, scale, mean, inv_std, count;
  ProcessGroup group;
};

// Whether input, weight and bias need a gradient.
using NeededGrads = std::array<bool, 3>;

GradSums summed_over_ranks(const GradSums& mine, const ProcessGroup& group) {
  const auto message = at::cat({mine.grad, mine.grad_deviation});
  const auto sum = message.to(message_device(group, message));
  all_reduce(group, sum, "summing SyncBatchNorm's gradients");
  const auto halves = sum.to(message.device()).chunk(2);
  return {halves[0], halves[1]};
}

// (grad - mean(grad) - (input - mean) * inv_std^2 * mean(grad * (input - mean))) * scale, where scale = inv_std * weight.
at::Tensor grad_of_input(const at::Tensor& grad, const SavedNorm& saved, const GradSums& sums) {
  const auto& [input, scale, mean, inv_std, count, group] = saved;
  if (input.numel() == 0) return at::empty_like(input);
  const auto type = mean.scalar_type();
  if (input.is_cuda()) {
    return at::batch_norm_backward_elemt(grad, input, mean, inv_std, scale / inv_std, sums.grad.to(type),
                                         sums.grad_deviation.to(type), count.reshape({1}).to(at::kInt));
  }
  const auto slope = (sums.grad_deviation / count * inv_std.square() * -scale).to(type);
  const auto mean_grad = (sums.grad / count).to(type);
  return sum_of_centred(grad, {mean_grad, scale}, input, {mean, slope});
}

// Returns the needed gradients. A function of its own, so that a second derivative is an error instead of a wrong result.
struct SyncedNormBackward : torch::autograd::Function<SyncedNormBackward> {
  static variable_list forward(AutogradContext*, const at::Tensor& grad_output, const SavedNorm& saved,
                               const NeededGrads& needed) {
    const c10::impl::ExcludeDispatchKeyGuard no_casts(amp::detail::kOffInside);
    const auto grad = amp::detail::in_layout_of(grad_output, saved.input);
    const auto mine = sums_of_grad(grad, saved.input, saved.mean, saved.inv_std);
    variable_list grads;
    if (needed[0]) grads.push_back(grad_of_input(grad, saved, summed_over_ranks(mine, saved.group)));
    const auto type = saved.mean.scalar_type();
    if (needed[1]) grads.push_back((mine.grad_deviation * saved.inv_std).to(type));
    if (needed[2]) grads.push_back(mine.grad.to(type));
    return grads;
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    C10_THROW_ERROR(NotImplementedError,
                    "SyncBatchNorm: the backward pass over several ranks cannot be differentiated. For second derivatives use "
                    "torch::nn::BatchNorm, or a process group of one rank.");
  }
};

struct SyncedNorm : torch::autograd::Function<SyncedNorm> {
  // `weight` and `bias` have the arithmetic dtype.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& given, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const NormTensors& tensors, const NormSettings& settings) {
    const c10::impl::ExcludeDispatchKeyGuard no_casts(amp::detail::kOffInside);
    const auto input = in_kernel_layout(given);
    const auto batch = joined(statistics_of(input), settings.group);
    if (tensors.running_mean.defined()) follow(batch, settings.momentum, tensors.running_mean, tensors.running_var);
    const auto type = arithmetic_type(input.scalar_type());
    const auto mean = batch.mean.to(type), inv_std = batch.variance.add(settings.eps).rsqrt().to(type);
    const auto scale = weight ? inv_std * *weight : inv_std;
    save(ctx, {input, scale, mean, inv_std, batch.count, settings.group});
    ctx->saved_data["has_weight"] = weight.has_value();
    ctx->saved_data["has_bias"] = bias.has_value();
    if (input.numel() == 0) return at::empty_like(input);
    return std::get<0>(at::native_batch_norm(input, weight, bias, mean, batch.variance.to(type), /*training=*/false,
                                             /*momentum=*/0, settings.eps));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto needed = needed_grads(ctx);
    const auto answers = SyncedNormBackward::apply(grads[0], saved(ctx), needed);
    variable_list result(5);
    for (size_t i = 0, next = 0; i < needed.size(); ++i) {
      if (needed[i]) result[i] = answers[next++];
    }
    return result;
  }

 private:
  // needs_input_grad counts only the tensors that were passed.
  static NeededGrads needed_grads(AutogradContext* ctx) {
    const bool has_weight = ctx->saved_data.at("has_weight").toBool(), has_bias = ctx->saved_data.at("has_bias").toBool();
    return {ctx->needs_input_grad(0), has_weight && ctx->needs_input_grad(1),
            has_bias && ctx->needs_input_grad(has_weight ? 2 : 1)};
  }
  static void save(AutogradContext* ctx, const SavedNorm& norm) {
    ctx->save_for_backward({norm.input, norm.scale, norm.mean, norm.inv_std, norm.count});
    ctx->saved_data["group"] = c10::IValue::make_capsule(norm.group);
  }
  static SavedNorm saved(AutogradContext* ctx) {
    const auto tensors = ctx->get_saved_variables();
    auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(ctx->saved_data.at("group").toCapsule());
    return {tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], std::move(group)};
  }
};

// The group whose batches are joined; null if it is this rank alone.
ProcessGroup other_ranks(const ProcessGroup& group) {
  if (!group.defined() && !is_initialized()) return {};
  const auto all = or_default(group);
  return all->getSize() > 1 ? all : ProcessGroup();
}

at::Tensor libtorch_norm(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings, bool by_batch) {
  return at::batch_norm(input, if_defined(tensors.weight), if_defined(tensors.bias), if_defined(tensors.running_mean),
                        if_defined(tensors.running_var), by_batch, settings.momentum, settings.eps,
                        at::globalContext().userEnabledCuDNN());
}

at::Tensor converted(const at::Tensor& tensor, c10::ScalarType dtype) { return tensor.defined() ? tensor.to(dtype) : tensor; }

bool all_have(const NormTensors& tensors, c10::ScalarType dtype) {
  const auto all = {&tensors.weight, &tensors.bias, &tensors.running_mean, &tensors.running_var};
  return std::all_of(all.begin(), all.end(),
                     [&](const auto* each) { return !each->defined() || each->scalar_type() == dtype; });
}

// LibTorch's batch norm takes these tensors in the input's dtype or in that of the arithmetic.
at::Tensor in_one_process(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings, bool by_batch) {
  const auto type = arithmetic_type(input.scalar_type());
  if (all_have(tensors, input.scalar_type()) || all_have(tensors, type))
    return libtorch_norm(input, tensors, settings, by_batch);
  const NormTensors alike{converted(tensors.weight, type), converted(tensors.bias, type), converted(tensors.running_mean, type),
                          converted(tensors.running_var, type)};
  const auto output = libtorch_norm(input, alike, settings, by_batch);
  if (by_batch && tensors.running_mean.defined()) {
    tensors.running_mean.copy_(alike.running_mean);
    tensors.running_var.copy_(alike.running_var);
  }
  return output;
}

at::Tensor over_this_rank(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings) {
  const int64_t values = input.size(1) > 0 ? input.numel() / input.size(1) : 0;
  TORCH_CHECK_VALUE(values > 1, "SyncBatchNorm: the batch has ", values, " values per channel, and a variance needs more than ",
                    "one. Its shape is ", input.sizes(), ". Give it a larger batch, or call eval() first.");
  return in_one_process(input, tensors, settings, /*by_batch=*/true);
}

at::Tensor over_all_ranks(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings) {
  const auto type = arithmetic_type(input.scalar_type());
  return SyncedNorm::apply(input, if_defined(converted(tensors.weight, type)), if_defined(converted(tensors.bias, type)),
                           tensors, settings);
}

// Calls `normalize` with `input` in the shape [N, C, *].
template <class Normalize>
at::Tensor with_channels_second(const at::Tensor& input, bool channel_last, Normalize normalize) {
  return channel_last ? normalize(input.reshape({-1, input.size(-1)})).reshape(input.sizes()) : normalize(input);
}

}  // namespace

at::Tensor normalize_by_batch(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings) {
  NormSettings resolved = settings;
  resolved.group = other_ranks(settings.group);
  return with_channels_second(input, settings.channel_last, [&](const at::Tensor& x) {
    return resolved.group.defined() ? over_all_ranks(x, tensors, resolved) : over_this_rank(x, tensors, resolved);
  });
}

at::Tensor normalize_by_running(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings) {
  return with_channels_second(input, settings.channel_last,
                              [&](const at::Tensor& x) { return in_one_process(x, tensors, settings, /*by_batch=*/false); });
}

}  // namespace apex::parallel::detail
