#include <apex_cpp/parallel/sync_batch_norm.h>

#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/parallel/sync_batch_norm/batch_norm_autograd.h>
#include <apex_cpp/parallel/sync_batch_norm/process_group_mark.h>

#include <ATen/ops/relu.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace apex::parallel {

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input, const at::Tensor& z) {
  _check_input_dim(input);
  TORCH_CHECK(!z.defined() || z.sizes() == input.sizes(), "SyncBatchNorm: z has shape ", z.sizes(), " and the input ",
              input.sizes(), "; z is added to the output and must have its shape.");
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

namespace {

template <class... Impls>
bool is_one_of(const torch::nn::Module& module) {
  return (dynamic_cast<const Impls*>(&module) || ...);
}

// The options of LibTorch's batch norm, or null.
template <class Impl>
const torch::nn::BatchNormOptions* options_if(const torch::nn::Module& module) {
  const auto* norm = dynamic_cast<const Impl*>(&module);
  return norm ? &norm->options : nullptr;
}

const torch::nn::BatchNormOptions* options_of(const torch::nn::Module& module) {
  if (const auto* options = options_if<torch::nn::BatchNorm1dImpl>(module)) return options;
  if (const auto* options = options_if<torch::nn::BatchNorm2dImpl>(module)) return options;
  return options_if<torch::nn::BatchNorm3dImpl>(module);
}
torch::nn::BatchNormOptions* options_of(torch::nn::Module& module) {
  return const_cast<torch::nn::BatchNormOptions*>(options_of(std::as_const(module)));
}

double unmarked_eps(const torch::nn::BatchNormOptions& options) {
  const auto mark = detail::mark_of(options.eps());
  return mark ? mark->eps : options.eps();
}

// A module's name for messages; the root has an empty one.
std::string called(const std::string& name) { return name.empty() ? "the model" : name; }

void check_eps(const std::string& name, double eps) {
  TORCH_CHECK_VALUE(std::isfinite(eps) && eps >= 0, "convert_syncbn_model: the eps of ", called(name), " is ", eps,
                    "; it must not be negative.");
}

void warn_of_unknown(const std::string& name, const torch::nn::Module& module) {
  if (is_one_of<torch::nn::InstanceNorm1dImpl, torch::nn::InstanceNorm2dImpl, torch::nn::InstanceNorm3dImpl>(module)) return;
  const auto buffers = module.named_buffers(/*recurse=*/false);
  if (!buffers.contains("running_mean") || !buffers.contains("running_var")) return;
  TORCH_WARN("convert_syncbn_model: ", called(name), " is a ", module.name(),
             " with running statistics of its own, but not one of torch::nn::BatchNorm1d, 2d and 3d. It is left unchanged and "
             "does not synchronize. If it is a batch norm, use apex::parallel::SyncBatchNorm in it.");
}

void convert(const std::string& name, torch::nn::Module& module, const ProcessGroup& group, bool channel_last) {
  if (auto* sync = dynamic_cast<SyncBatchNormImpl*>(&module)) {
    sync->options.process_group(group).channel_last(channel_last);
  } else if (auto* options = options_of(module)) {
    options->eps(detail::marked({unmarked_eps(*options), group, channel_last}));
  } else {
    warn_of_unknown(name, module);
  }
}

}  // namespace

void detail::synchronize_batch_norms(torch::nn::Module& model, const ProcessGroup& group, bool channel_last) {
  register_marked_batch_norm();
  // apply() also takes a model that no shared_ptr holds; named_modules() does not.
  model.apply([](const std::string& name, torch::nn::Module& module) {
    if (const auto* options = options_of(module)) check_eps(name, unmarked_eps(*options));
  });
  model.apply([&](const std::string& name, torch::nn::Module& module) { convert(name, module, group, channel_last); });
}

std::optional<SyncBatchNormOptions> sync_batch_norm_options(const torch::nn::Module& module) {
  if (const auto* sync = dynamic_cast<const SyncBatchNormImpl*>(&module)) return sync->options;
  const auto* options = options_of(module);
  const auto mark = options ? detail::mark_of(options->eps()) : std::nullopt;
  if (!mark) return std::nullopt;
  SyncBatchNormOptions found(options->num_features());
  found.eps(mark->eps).momentum(options->momentum()).affine(options->affine());
  found.track_running_stats(options->track_running_stats()).process_group(mark->group).channel_last(mark->channel_last);
  return found;
}

ProcessGroup create_syncbn_process_group(int group_size) {
  if (group_size == 0) return {};
  const int world_size = default_process_group()->getSize(), rank = default_process_group()->getRank();
  TORCH_CHECK_VALUE(group_size > 0 && world_size % group_size == 0, "create_syncbn_process_group: group_size is ", group_size,
                    ", which does not divide the ", world_size, " ranks into equal groups.");
  ProcessGroup mine;
  for (int first = 0; first < world_size; first += group_size) {
    std::vector<int> ranks(static_cast<size_t>(group_size));
    std::iota(ranks.begin(), ranks.end(), first);
    const auto group = new_group(ranks);  // every rank must take part in creating every group
    if (first <= rank && rank < first + group_size) mine = group;
  }
  return mine;
}

}  // namespace apex::parallel
