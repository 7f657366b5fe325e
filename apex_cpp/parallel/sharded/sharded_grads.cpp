#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <unordered_set>

#include "kernels/memory_order.h"
#include "kernels/multi_tensor.h"

namespace apex::parallel::detail {
namespace {

// The number of buckets in flight: one is sent while another is summed.
constexpr size_t kPipeline = 2;

std::string described(const at::Tensor& param) {
  std::ostringstream text;
  text << param.sizes() << " strides " << param.strides() << ' ' << param.scalar_type()
       << (param.requires_grad() ? "" : " frozen");
  return text.str();
}

// Whether a rank would write the new values of both to one memory, as after `a.set_data(b)`.
bool share_values(const at::Tensor& a, const at::Tensor& b) {
  return amp::detail::has_shared_memory(a) && at::get_overlap_status(a, b) != at::MemOverlapStatus::No;
}

// The bits of positive floats have the same order as their values.
int32_t bits_of(float value) {
  int32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(int32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

// The parameter owns the hook, which may outlive the optimizer.
struct ShardedGrads::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<ShardedGrads> owner, size_t index) : owner_(std::move(owner)), index_(index) {}
  void operator()(const at::Tensor&) override {
    if (const auto sync = owner_.lock()) sync->take(index_);
  }

 private:
  std::weak_ptr<ShardedGrads> owner_;
  size_t index_;
};

ShardedGrads::ShardedGrads(ShardedGradsOptions options) : options_(std::move(options)) {}

ShardedGrads::~ShardedGrads() {
  for (const Param& each : params_) torch::autograd::impl::set_post_acc_grad_hooks(each.tensor, nullptr);
}

// ---- parameters ----

void ShardedGrads::check_params(const std::vector<at::Tensor>& params) const {
  std::ostringstream mine;
  for (const auto i : c10::irange(params.size())) {
    const at::Tensor& param = params[i];
    TORCH_CHECK_TYPE(
        amp::detail::is_amp_float(param.scalar_type()), "Parameter ", i, ", of shape ", param.sizes(), ", has dtype ",
        param.scalar_type(),
        "; a sharded optimizer takes float16, bfloat16 and float32. Convert it, or leave it to an optimizer of its "
        "own.");
    TORCH_CHECK_VALUE(param.is_non_overlapping_and_dense(), "Parameter ", i, ", of shape ", param.sizes(), " and strides ",
                      param.strides(), ", has gaps in memory, and cannot be split into shards. Make it contiguous().");
    TORCH_CHECK_VALUE(!torch::autograd::impl::post_acc_grad_hooks(param), "Parameter ", i, ", of shape ", param.sizes(),
                      ", already has a hook on its gradient, probably of another sharded optimizer. Give each parameter to one "
                      "sharded optimizer.");
    const auto is_tied = [&](const at::Tensor& other) { return share_values(param, other); };
    const bool is_tied_here = std::any_of(params.begin(), params.begin() + static_cast<int64_t>(i), is_tied);
    const auto is_tied_to = [&](const Param& each) { return is_tied(each.tensor); };
    const bool is_tied_to_others = std::any_of(params_.begin(), params_.end(), is_tied_to);
    TORCH_CHECK_VALUE(
        !is_tied_here && !is_tied_to_others, "Parameter ", i, ", of shape ", param.sizes(),
        ", shares memory with another one, and the sharded optimizer would keep the update of one alone. Register "
        "one parameter in both modules instead of set_data, or leave one of them out.");
    mine << "parameter " << i << ": " << described(param) << '\n';
  }
  expect_same(options_.group, mine.str(), "A sharded optimizer's parameters");
}

void ShardedGrads::add_params(const std::vector<at::Tensor>& params) {
  check_params(params);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& param : params) {
    const size_t index = params_.size();
    if (param.numel() > 0) broadcast(options_.group, flat(param), 0, "sending rank 0's parameter " + std::to_string(index));
    params_.push_back({param, std::nullopt, {}, false, false, false});
    index_[param.unsafeGetTensorImpl()] = index;
    torch::autograd::impl::set_post_acc_grad_hooks(param, std::make_unique<Hook>(weak_from_this(), index));
  }
}

size_t ShardedGrads::index_of(const at::Tensor& param) const {
  const auto found = index_.find(param.unsafeGetTensorImpl());
  TORCH_CHECK(found != index_.end(), "A parameter of shape ", param.sizes(),
              " is in a group of the sharded optimizer, but was not added by its own add_param_group. Call it on the "
              "DistributedFusedAdam itself: that of torch::optim::Optimizer is not virtual.");
  return found->second;
}

std::string ShardedGrads::named(size_t index) const {
  std::ostringstream text;
  text << "parameter " << index << ", of shape " << params_[index].tensor.sizes() << ", on rank " << rank();
  return text.str();
}

void ShardedGrads::check_all_among(const std::vector<at::Tensor>& params) const {
  std::unordered_set<const at::TensorImpl*> among;
  for (const at::Tensor& param : params) among.insert(param.unsafeGetTensorImpl());
  for (const auto i : c10::irange(params_.size())) {
    const Param& each = params_[i];
    TORCH_CHECK(!each.present || among.count(each.tensor.unsafeGetTensorImpl()) > 0, "The sharded optimizer's ", named(i),
                " was taken out of its groups and still gets gradients, which the optimizer takes out of the model. Freeze it "
                "with requires_grad_(false), or make a new optimizer without it, and drop the gradients with zero_grad().");
  }
}

void ShardedGrads::lay_out_new_params() {
  std::vector<size_t> trained;
  for (const auto i : c10::irange(params_.size())) {
    if (is_new(params_[i])) trained.push_back(i);
  }
  lay_out_params(trained);
}

// Frozen parameters get buckets of their own, behind the others: a later bucket would wait for their gradients.
void ShardedGrads::lay_out_once_trained(const std::vector<at::Tensor>& params) {
  if (buckets_.empty()) lay_out_new_params();
  std::vector<size_t> frozen;
  for (const at::Tensor& param : params) {
    const size_t index = index_of(param);
    if (!params_[index].place) frozen.push_back(index);
  }
  lay_out_params(frozen);
}

void ShardedGrads::lay_out_unfrozen() {
  lay_out_new_params();
  agreed_ = false;
}

void ShardedGrads::lay_out_params(const std::vector<size_t>& indices) {
  std::vector<ParamSpec> specs;
  for (const size_t i : indices) {
    const at::Tensor& param = params_[i].tensor;
    const auto dtype = param.scalar_type();
    TORCH_CHECK(!amp::detail::grad_sync_of(param), "DistributedDataParallel averages the gradient of ", named(i),
                ", which DistributedFusedAdam itself sums over the ranks. Use the model without DistributedDataParallel.");
    specs.push_back(
        {i, param.numel(), param.device(), dtype, options_.grad_dtype.value_or(dtype), options_.param_dtype.value_or(dtype)});
  }
  if (specs.empty()) return;
  for (auto& layout : lay_out(specs, options_.bucket_bytes, options_.group->getSize())) {
    for (const Slot& slot : layout.slots) {
      Param& each = params_[slot.param];
      each.place = Place{buckets_.size(), slot};
      each.layout = at::empty_like(each.tensor, each.tensor.options().device(at::kMeta));
    }
    buckets_.emplace_back(std::move(layout));
  }
}

// Compares which parameters have a place, and which are about to get one. Drops the pass if ranks differ.
void ShardedGrads::check_same_trained() {
  std::ostringstream mine;
  for (const auto i : c10::irange(params_.size())) {
    const Param& each = params_[i];
    mine << "parameter " << i << ", of shape " << each.tensor.sizes() << ": "
         << (each.place     ? "trained"
             : is_new(each) ? "unfrozen"
                            : "frozen")
         << '\n';
  }
  try {
    expect_same(options_.group, mine.str(), "The parameters that a sharded optimizer trains");
  } catch (...) {
    forget_arrivals();
    drop_pass();
    throw;
  }
}

// Before anything is sent. Ranks with other buckets would sum different parameters, or wait for each other. Buckets that are
// added later are agreed on at the end of a pass.
void ShardedGrads::agree_on_buckets() {
  if (agreed_) return;
  check_same_trained();
  agreed_ = !buckets_.empty();
}

const std::vector<GradBucket>& ShardedGrads::buckets() {
  if (buckets_.empty()) lay_out_new_params();
  return buckets_;
}

const ShardedGrads::Place* ShardedGrads::place_of(size_t index) {
  if (buckets_.empty()) lay_out_new_params();
  return params_[index].place ? &*params_[index].place : nullptr;
}

Part ShardedGrads::part_of(size_t index, int rank) {
  const Place* place = place_of(index);
  return place ? buckets_[place->bucket].layout.part_of(place->slot, rank) : Part{};
}

// ---- while backward runs ----

void ShardedGrads::take(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(refusal_.empty(), refusal_);
  if (held_ || no_sync_ > 0 || !options_.overlap) return;
  const Place* place = place_of(index);
  if (!place || params_[index].arrived) return;
  if (params_[index].tensor.grad().is_sparse()) return;  // the end of the pass reports it
  params_[index].arrived = true;
  ++buckets_[place->bucket].arrived;
  send_full_buckets();
}

void ShardedGrads::send_full_buckets() {
  while (sent_ < buckets_.size() && buckets_[sent_].arrived == buckets_[sent_].layout.slots.size()) send(buckets_[sent_]);
}

std::string ShardedGrads::name_of(const GradBucket& bucket) const {
  return "summing gradient bucket " + std::to_string(&bucket - buckets_.data()) + " of the sharded optimizer";
}

void ShardedGrads::send(GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  const amp::disable_casts casts_off;
  agree_on_buckets();
  if (sent_ >= kPipeline) receive(buckets_[sent_ - kPipeline]);
  at::Tensor pieces = packed(bucket);
  if (watched_) {
    at::Tensor& found = bucket.nonfinite_in_pass;
    if (!found.defined()) found = at::zeros({1}, pieces.options().dtype(at::kInt));
    kernels::multi_tensor_check_finite(found, {pieces});
  }
  bucket.in_flight.emplace(options_.group, std::move(pieces), name_of(bucket));
  ++sent_;
}

void ShardedGrads::check_takes(size_t index) const {
  const at::Tensor& param = params_[index].tensor;
  const at::Tensor& grad = param.grad();
  TORCH_CHECK(!grad.is_sparse(), "The gradient of ", named(index),
              " is sparse; a sharded optimizer takes dense gradients. Make the embedding dense (sparse=false), or give it to "
              "another optimizer.");
  if (!params_[index].place) return;
  const auto& layout = buckets_[params_[index].place->bucket].layout;
  TORCH_CHECK(param.scalar_type() == layout.dtype && param.device() == layout.device, "The sharded optimizer's ", named(index),
              " was ", layout.dtype, " on ", layout.device, " when it was first trained and is ", param.scalar_type(), " on ",
              param.device(), " now. Convert or move the model before the first backward pass.");
  const at::Tensor& first = params_[index].layout;
  TORCH_CHECK(kernels::same_memory_order(param, first), "The sharded optimizer's ", named(index), " had sizes ", first.sizes(),
              " and strides ", first.strides(), " when it was first trained and has ", param.sizes(), " and ", param.strides(),
              " now. Change the memory format before the first backward pass.");
}

namespace {

// What no parameter fills.
std::vector<at::Tensor> padding_of(const BucketLayout& layout, const at::Tensor& pieces) {
  std::vector<at::Tensor> padding;
  int64_t end = 0;
  const auto pad_to = [&](int64_t begin) {
    if (begin > end) padding.push_back(pieces.narrow(0, end, begin - end));
  };
  for (const Slot& slot : layout.slots) {
    pad_to(slot.begin);
    end = slot.begin + slot.numel;
  }
  pad_to(pieces.numel());
  return padding;
}

}  // namespace

// Takes the bucket's gradients out of their parameters; zeros for missing ones.
at::Tensor ShardedGrads::packed(const GradBucket& bucket) {
  const auto& layout = bucket.layout;
  const int64_t size = layout.shard_size * options_.group->getSize();
  const at::Tensor pieces = at::empty({size}, at::TensorOptions().device(layout.device).dtype(layout.grad_dtype));
  std::vector<at::Tensor> from, to, zeros = padding_of(layout, pieces);
  for (const Slot& slot : layout.slots) {
    Param& each = params_[slot.param];
    at::Tensor& grad = each.tensor.mutable_grad();
    const at::Tensor place = pieces.narrow(0, slot.begin, slot.numel);
    if (!grad.defined()) {
      zeros.push_back(place);
      continue;
    }
    check_takes(slot.param);
    from.push_back(flat(amp::detail::in_layout_of(grad, each.tensor)));
    to.push_back(place);
  }
  kernels::multi_tensor_copy(from, to);
  if (!zeros.empty()) at::_foreach_zero_(zeros);
  for (const Slot& slot : layout.slots) {
    at::Tensor& grad = params_[slot.param].tensor.mutable_grad();
    params_[slot.param].in_pass |= grad.defined();
    grad.reset();
  }
  return pieces;
}

void ShardedGrads::receive(GradBucket& bucket) {
  if (!bucket.in_flight) return;
  const at::Tensor shard = bucket.in_flight->finish();
  bucket.in_flight.reset();
  if (options_.average) shard.div_(options_.group->getSize());
  bucket.pass = bucket.pass.defined() ? bucket.pass.add_(shard) : shard;
}

// ---- the end of a pass ----

bool ShardedGrads::has_open_grads() const {
  return std::any_of(params_.begin(), params_.end(),
                     [](const Param& each) { return each.arrived || (each.place && each.tensor.grad().defined()); });
}

// Whether this rank's part of the sums has Inf or NaN.
bool ShardedGrads::is_pass_nonfinite() const {
  std::vector<at::Tensor> passes;
  for (const GradBucket& bucket : buckets_) passes.push_back(bucket.pass);
  const at::Tensor found = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(device_for(options_.group)));
  kernels::multi_tensor_check_finite(found, passes);
  return found.item<int32_t>() != 0;
}

// Drops the pass if ranks have different loss scales: such sums are meaningless.
void ShardedGrads::check_same_scale(float lowest, float highest, double mine) {
  if (lowest == highest) return;
  drop_pass();
  TORCH_CHECK_VALUE(false, "The gradients that a sharded optimizer sums carry a loss scale of ", lowest, " on one rank and of ",
                    highest, " on another; on this one, rank ", rank(), ", it is ", mine,
                    ". Call amp::initialize with the same level and options, and amp::load_checkpoint, on every rank, and open "
                    "the same scale_loss blocks.");
}

// The ranks agree on which parameters have a gradient on any rank, and, if the norm of all sums cannot tell, whether the pass
// is finite. Parameters that were unfrozen on all ranks get a place. Returns whether some rank has gradients for another round.
// Errors: ValueError on every rank if loss scales or the unfrozen parameters differ.
bool ShardedGrads::agree_on_round(double scale) {
  const auto count = static_cast<int64_t>(params_.size());
  at::Tensor flags = at::zeros({count + 5}, at::kInt);
  auto values = flags.accessor<int32_t, 1>();
  for (const auto i : c10::irange(count)) {
    const Param& each = params_[i];
    values[i] = each.present || each.in_pass;  // present too: a rank that dropped its sums alone steps with the others
    values[count] |= (each.place || is_new(each)) && each.tensor.grad().defined();
    values[count + 4] |= is_new(each);
  }
  values[count + 1] = watched_ && older_nonfinite_ && is_pass_nonfinite();
  values[count + 2] = bits_of(static_cast<float>(scale));
  values[count + 3] = -values[count + 2];  // the maximum of the negative values is the lowest scale
  at::Tensor shared = flags.to(device_for(options_.group));
  all_reduce(options_.group, shared, "finding which parameters have gradients", c10d::ReduceOp::MAX);
  flags.copy_(shared);
  check_same_scale(float_of(-values[count + 3]), float_of(values[count + 2]), scale);
  for (const auto i : c10::irange(count)) params_[i].in_pass = values[i] != 0;
  pass_nonfinite_ = values[count + 1] != 0;
  if (values[count + 4] != 0) {
    check_same_trained();
    lay_out_new_params();
  }
  return values[count] != 0;
}

// Ranks may have sent different numbers of buckets. Sends the remaining ones, on all ranks in the same order.
void ShardedGrads::finish_round() {
  agree_on_buckets();  // also if this rank has none
  while (sent_ < buckets_.size()) send(buckets_[sent_]);
  for (GradBucket& bucket : buckets_) receive(bucket);
  forget_arrivals();
}

void ShardedGrads::forget_arrivals() {
  for (GradBucket& bucket : buckets_) bucket.arrived = 0;
  for (Param& each : params_) each.arrived = false;
  sent_ = 0;
}

// Adds what the ranks have agreed on to what earlier passes have left. Before, an error drops the pass alone.
void ShardedGrads::keep_pass(double scale) {
  const double of_older = clip_ * scale / scale_;
  for (GradBucket& bucket : buckets_) {
    if (bucket.sum.defined() && of_older != 1) bucket.sum.mul_(of_older);
    bucket.sum = bucket.sum.defined() ? bucket.sum.add_(bucket.pass) : bucket.pass;
    const at::Tensor& found = bucket.nonfinite_in_pass;
    if (found.defined()) bucket.found_nonfinite = bucket.found_nonfinite.defined() ? bucket.found_nonfinite.add_(found) : found;
  }
  for (Param& each : params_) each.present |= each.in_pass;
  drop_pass();
}

// A parameter that this pass alone has reached has no gradient then: a step would decay its weights and moments.
void ShardedGrads::drop_pass() {
  for (GradBucket& bucket : buckets_) {
    bucket.pass.reset();
    bucket.nonfinite_in_pass.reset();
  }
  for (Param& each : params_) each.in_pass = false;
}

void ShardedGrads::finish() {
  if (!ended_ || has_open_grads()) end_pass(scale_);
}

void ShardedGrads::end_pass(double scale) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::NoGradGuard no_grad;
  const amp::disable_casts casts_off;
  held_ = false;
  if (buckets_.empty()) lay_out_new_params();
  for (const auto i : c10::irange(params_.size())) {
    const Param& each = params_[i];
    if ((each.place || is_new(each)) && each.tensor.grad().defined()) check_takes(i);
  }
  older_nonfinite_ |= norm_ && !std::isfinite(*norm_);
  do finish_round();
  while (agree_on_round(scale));
  keep_pass(scale);
  scale_ = scale;
  clip_ = 1.0;
  ended_ = true;
  in_block_ = delayed_ = false;
  forget_norm();
}

void ShardedGrads::abandon_pass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const amp::disable_casts casts_off;
  const bool begun = std::any_of(params_.begin(), params_.end(), [](const Param& each) { return each.arrived; });
  held_ = in_block_ = false;
  for (const Param& each : params_) each.tensor.mutable_grad().reset();
  if (begun) finish_round();  // the other ranks send all buckets of the round, too
  drop_pass();
}

void ShardedGrads::drop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool begun = std::any_of(params_.begin(), params_.end(), [](const Param& each) { return each.arrived; });
  if (begun) finish_round();
  drop_pass();
  for (GradBucket& bucket : buckets_) {
    bucket.sum.reset();
    bucket.found_nonfinite.reset();
  }
  for (Param& each : params_) each.present = false;
  scale_ = clip_ = 1.0;
  ended_ = older_nonfinite_ = pass_nonfinite_ = delayed_ = false;
  forget_norm();
}

}  // namespace apex::parallel::detail
