#include <apex_cpp/parallel/ddp/bucket.h>

#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include "kernels/multi_tensor.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace apex::parallel::detail {
namespace {

// Dense strides in the parameter's memory order, so that gradients are copied in memory order.
std::vector<int64_t> dense_strides_of(const at::Tensor& param) {
  const at::Tensor like = param.is_non_overlapping_and_dense() ? param : at::empty(param.sizes(), at::device(at::kMeta));
  return like.strides().vec();
}

uint64_t hash_of_names(const std::vector<NamedTensor>& params) {
  std::string names;
  for (const auto& each : params) names += each.name + '\n';
  return std::hash<std::string>()(names);
}

/// Shows a range in profiles during its lifetime.
class ProfiledRange {
 public:
  ProfiledRange(bool on, const std::string& name) : record_(at::RecordScope::USER_SCOPE) {
    if (on && record_.isActive()) record_.before(name);
  }

 private:
  at::RecordFunction record_;
};

}  // namespace

Bucket::Bucket(std::vector<NamedTensor> params, ProcessGroup group, std::string name, BucketArithmetic arithmetic)
    : params_(std::move(params)), group_(std::move(group)), name_(std::move(name)), arithmetic_(arithmetic) {
  for (const auto& each : params_) numel_ += each.tensor.numel();
  begin_pass();
}

// The views are detached, because Optimizer::zero_grad calls detach_, which throws for views.
std::vector<at::Tensor> Bucket::views_of(const at::Tensor& flat) const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const auto& [name, param] : params_) {
    views.push_back(flat.as_strided(param.sizes(), dense_strides_of(param), offset).detach());
    offset += param.numel();
  }
  return views;
}

void Bucket::allocate() {
  const auto options = params_.front().tensor.options().requires_grad(false);
  const bool widens = arithmetic_.in_float32 && c10::isReducedFloatingType(params_.front().tensor.scalar_type());
  const auto on_wire = widens ? options.dtype(at::kFloat) : options;
  const int ranks = group_->getSize();
  wire_ = at::empty({numel_ + BucketTail::numel(params_.size(), ranks)}, on_wire);
  wire_views_ = views_of(wire_);
  tail_.place(wire_, params_.size(), group_, hash_of_names(params_), arithmetic_.may_lack);
  found_nonfinite_ = at::zeros({1}, options.dtype(at::kInt));
  if (!arithmetic_.keeps_views) return;
  const bool same = on_wire.dtype() == options.dtype();
  kept_ = same ? wire_.slice(0, 0, numel_) : at::empty({numel_}, options);
  kept_views_ = same ? wire_views_ : views_of(kept_);
}

void Bucket::check_dense() const {
  for (const auto& [name, param] : params_) {
    TORCH_CHECK(!param.grad().defined() || !param.grad().is_sparse(), "DistributedDataParallel on rank ", group_->getRank(),
                ": the gradient of '", name,
                "' is sparse; buckets hold dense gradients. Make the embedding dense (sparse=false).");
  }
}

// Gives gradients that share memory memory of their own, because each gradient is written back separately.
void Bucket::separate_grads() const {
  amp::detail::OverlappingGrads grads;
  for (const auto& [name, param] : params_) grads.add(param);
  grads.separate();
}

// Gradients that the program still holds from the last pass must not be overwritten.
bool Bucket::grads_are_views() const {
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!grad(i).defined() || !grad(i).is_alias_of(kept_)) return false;
  }
  return true;
}

bool Bucket::has(const at::Tensor& param) const {
  return std::any_of(params_.begin(), params_.end(), [&](const auto& each) { return each.tensor.is_same(param); });
}

void Bucket::begin_pass() {
  is_here_.assign(params_.size(), false);
  arrived_ = 0;
}

void Bucket::arrive(size_t position) {
  is_here_[position] = true;
  ++arrived_;
}

void Bucket::launch(int pass) {
  const ProfiledRange range(arithmetic_.profiled, "DistributedDataParallel: launch " + name_);
  const at::NoGradGuard no_grad;
  check_dense();
  separate_grads();
  if (!wire_.defined() || (arithmetic_.keeps_views && !grads_are_views())) allocate();
  flatten();
  tail_.say(pass, is_here_, found_nonfinite_);
  std::vector<at::Tensor> reduced{wire_};
  work_ = group_->allreduce(reduced);
}

void Bucket::flatten() {
  std::vector<at::Tensor> from, to;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!grad(i).defined()) {
      wire_views_[i].zero_();
      continue;
    }
    grad(i) = amp::detail::in_layout_of(grad(i), wire_views_[i]);
    from.push_back(grad(i));
    to.push_back(wire_views_[i]);
  }
  found_nonfinite_.zero_();
  kernels::multi_tensor_scale(found_nonfinite_, from, to, arithmetic_.before);
}

void Bucket::finish() {
  const ProfiledRange range(arithmetic_.profiled, "DistributedDataParallel: finish " + name_);
  const at::NoGradGuard no_grad;
  wait(group_, std::exchange(work_, nullptr), "all-reducing " + name_ + " of DistributedDataParallel");
  tail_.fetch();
  write_back();
}

// Which parameters have a gradient on some rank, if this rank may lack it.
std::vector<bool> Bucket::counted_where_lacking() const {
  return lacked() && arithmetic_.may_lack ? tail_.counted() : std::vector<bool>(params_.size(), false);
}

void Bucket::write_back() {
  if (!arithmetic_.keeps_views) return write_back_to_grads();
  const bool in_place = kept_.is_alias_of(wire_);
  if (!in_place || arithmetic_.after != 1) {
    kernels::multi_tensor_scale(amp::detail::unread_flag(wire_), wire_views_, kept_views_, arithmetic_.after);
  }
  const auto counted = counted_where_lacking();
  for (size_t i = 0; i < params_.size(); ++i) {
    if (grad(i).defined() || counted[i]) grad(i) = kept_views_[i];
  }
}

void Bucket::write_back_to_grads() {
  const auto counted = counted_where_lacking();
  std::vector<at::Tensor> from, to;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!grad(i).defined() && !counted[i]) continue;
    if (!grad(i).defined()) grad(i) = at::empty_like(wire_views_[i], params_[i].tensor.options().requires_grad(false));
    from.push_back(wire_views_[i]);
    to.push_back(grad(i));
  }
  kernels::multi_tensor_scale(amp::detail::unread_flag(wire_), from, to, arithmetic_.after);
}

void Bucket::abandon() {
  if (!std::exchange(work_, nullptr)) return;
  wire_.reset();
  kept_.reset();
}

namespace {

// The terms of a rank's first element.
constexpr int kNonfinite = 1, kLacks = 2, kPass = 4;
// Passes are counted modulo this, so that a rank's element is below 256 and exact in bfloat16.
constexpr int kPasses = 64;

// Byte `i` of a hash.
float byte_of(uint64_t hash, int i) { return static_cast<float>((hash >> (8 * i)) & 255); }

}  // namespace

void BucketTail::place(const at::Tensor& memory, size_t params, const ProcessGroup& group, uint64_t names,
                       bool counts_present) {
  memory_ = memory.slice(0, memory.numel() - numel(params, group->getSize()));
  params_ = params;
  names_ = names;
  counts_present_ = counts_present;
  const int64_t own = static_cast<int64_t>(params) + kPerRank * group->getRank();
  own_ = memory_.select(0, own);
  if (blank_.defined() && blank_.dtype() == memory.dtype()) return;  // the bucket's memory was made again
  const at::Tensor blank = at::zeros(memory_.sizes(), at::kFloat);
  if (counts_present) blank.slice(0, 0, static_cast<int64_t>(params)).fill_(1);
  for (int i = 0; i < kNameBytes; ++i) blank.select(0, own + 1 + i).fill_(byte_of(names, i));
  blank_ = blank.to(memory_.options());
}

void BucketTail::say(int pass, const std::vector<bool>& is_here, const at::Tensor& found_nonfinite) {
  pass_ = pass % kPasses;
  memory_.copy_(blank_);
  own_.copy_(found_nonfinite.select(0, 0), /*non_blocking=*/true);
  bool lacks = false;
  for (size_t i = 0; i < is_here.size(); ++i) {
    if (is_here[i]) continue;
    memory_.select(0, static_cast<int64_t>(i)).fill_(counts_present_ ? 0 : 1);
    lacks = true;
  }
  own_.add_(kPass * pass_ + (lacks ? kLacks : 0));
}

void BucketTail::fetch() {
  const at::Tensor in_float32 = memory_.to(at::kFloat);  // converts on the GPU: a copy with a conversion would wait for it
  host_ = in_float32.to(at::TensorOptions().device(at::kCPU), /*non_blocking=*/true, /*copy=*/true);
  if (memory_.is_cpu()) return;
  is_there_.emplace(memory_.device().type());
  is_there_->record(c10::impl::VirtualGuardImpl(memory_.device().type()).getStream(memory_.device()));
}

std::vector<float> BucketTail::values() const {
  if (!host_.defined()) return std::vector<float>(static_cast<size_t>(memory_.defined() ? memory_.numel() : 0));
  if (is_there_) is_there_->synchronize();
  return {host_.const_data_ptr<float>(), host_.const_data_ptr<float>() + host_.numel()};
}

std::vector<bool> BucketTail::counted() const {
  const auto all = values();
  std::vector<bool> counted;
  for (size_t i = 0; i < params_; ++i) counted.push_back(all[i] > 0);
  return counted;
}

std::vector<int> BucketTail::ranks_that(const std::function<bool(const float*)>& says) const {
  const auto all = values();
  std::vector<int> ranks;
  for (size_t i = params_, rank = 0; i < all.size(); i += kPerRank, ++rank) {
    if (says(&all[i])) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> BucketTail::ranks_in_another_pass() const {
  if (!host_.defined()) return {};
  return ranks_that([this](const float* own) { return static_cast<int>(*own) / kPass != pass_; });
}

std::vector<int> BucketTail::ranks_with_other_params() const {
  if (!host_.defined()) return {};
  return ranks_that([this](const float* own) {
    for (int i = 0; i < kNameBytes; ++i) {
      if (own[1 + i] != byte_of(names_, i)) return true;
    }
    return false;
  });
}

std::vector<int> BucketTail::ranks_that_lack() const {
  return ranks_that([](const float* own) { return (static_cast<int>(*own) & kLacks) != 0; });
}

std::vector<int> BucketTail::ranks_with_nonfinite() const {
  return ranks_that([](const float* own) { return (static_cast<int>(*own) & kNonfinite) != 0; });
}

}  // namespace apex::parallel::detail
