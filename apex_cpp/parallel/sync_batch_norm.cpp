#include <apex_cpp/parallel/sync_batch_norm.h>

#include <ATen/ops/relu.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <apex_cpp/amp/casts/cast_as.h>
#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/parallel/sync_batch_norm/autograd.h>

namespace apex::parallel {

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input, const at::Tensor& z) {
  _check_input_dim(input);
  TORCH_CHECK(!z.defined() || z.sizes() == input.sizes(), "SyncBatchNorm: z has shape ", z.sizes(), " and the input ",
              input.sizes(), "; what is added to the output has its shape.");
  const at::Tensor normalized = normalize(input);
  const at::Tensor sum = z.defined() ? normalized + z.to(normalized.scalar_type()) : normalized;
  return options.fuse_relu() ? at::relu(sum) : sum;
}

at::Tensor SyncBatchNormImpl::normalize(const at::Tensor& input) {
  static const auto& slot = amp::detail::operator_slot("aten::batch_norm", "");
  at::Tensor x = input;
  detail::NormTensors tensors{weight, bias, running_mean, running_var};
  amp::detail::cast_as(slot, {&x, &tensors.weight, &tensors.bias});
  const c10::impl::ExcludeDispatchKeyGuard no_casts(amp::detail::kOffInside);
  const detail::NormSettings settings{momentum_of_this_batch(), options.eps(), options.channel_last(), options.process_group()};
  if (!is_training() && running_mean.defined()) return detail::normalize_by_running(x, tensors, settings);
  const auto result = detail::normalize_by_batch(x, tensors, settings);
  if (tracks_now()) num_batches_tracked += 1;
  return result;
}

bool SyncBatchNormImpl::tracks_now() const { return is_training() && num_batches_tracked.defined(); }

double SyncBatchNormImpl::momentum_of_this_batch() const {
  if (options.momentum()) return *options.momentum();
  return tracks_now() ? 1 / (num_batches_tracked.item<double>() + 1) : 0;
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  TORCH_CHECK(2 <= input.dim() && input.dim() <= 5, "SyncBatchNorm: expected an input of 2 to 5 dimensions, got one of shape ",
              input.sizes(), ".");
  const int64_t channels = options.channel_last() ? input.size(-1) : input.size(1);
  TORCH_CHECK(channels == options.num_features(), "SyncBatchNorm: the input has shape ", input.sizes(), ", with ", channels,
              " channels in its ", options.channel_last() ? "last" : "second", " dimension, and num_features is ",
              options.num_features(), ".");
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "apex::parallel::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  options.momentum() ? stream << *options.momentum() : stream << "None";
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats()
         << ", channel_last=" << options.channel_last() << ", fuse_relu=" << options.fuse_relu() << ")";
}

}  // namespace apex::parallel
