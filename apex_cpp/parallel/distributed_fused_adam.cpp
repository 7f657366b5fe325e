#include <apex_cpp/parallel/distributed_fused_adam.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/optimizers/detail/fused_step.h>
#include <apex_cpp/optimizers/detail/remainders.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/sharded/param_sync.h>
#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace apex::parallel {

using optimizers::FusedAdamOptions;
using optimizers::FusedAdamParamState;
using optimizers::MasterStorage;
using optimizers::MomentStorage;

namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kLargestCap = 0x1p40;  // far above any memory, and exact as a count of bytes

std::string name_of(const std::optional<at::ScalarType>& dtype) { return dtype ? c10::toString(*dtype) : "own"; }

void check_dtype(const char* option, const std::optional<at::ScalarType>& dtype) {
  TORCH_CHECK_VALUE(!dtype || amp::detail::is_amp_float(*dtype), "DistributedFusedAdam: ", option,
                    " must be float32, float16 or bfloat16, got ", *dtype, ".");
}

// Describes the options that affect messages, for comparison between ranks.
std::string described(const DistributedFusedAdamOptions& options) {
  std::ostringstream text;
  text << "bucket_cap_mb " << options.bucket_cap_mb() << "\ngrad_sync_dtype " << name_of(options.grad_sync_dtype())
       << "\nparam_sync_dtype " << name_of(options.param_sync_dtype()) << "\nstore_params " << options.store_params()
       << "\nmaster_storage " << name_of(options.master_storage()) << "\naverage_grad_sync " << options.average_grad_sync();
  return text.str();
}

detail::ShardedGradsOptions checked(const DistributedFusedAdamOptions& options) {
  TORCH_CHECK_VALUE(options.bucket_cap_mb() > 0 && options.bucket_cap_mb() <= kLargestCap,
                    "DistributedFusedAdam: bucket_cap_mb must be positive and at most 2^40, got ", options.bucket_cap_mb(),
                    ".");
  check_dtype("dtype", options.dtype());
  check_dtype("grad_sync_dtype", options.grad_sync_dtype());
  check_dtype("param_sync_dtype", options.param_sync_dtype());
  optimizers::detail::check_rounds_to_nearest({"DistributedFusedAdam", std::nullopt, /*checks_lr=*/true}, options);
  TORCH_CHECK_VALUE(!options.stores_remainders() || options.param_sync_dtype().value_or(at::kBFloat16) == at::kBFloat16,
                    "DistributedFusedAdam: master_storage ", name_of(options.master_storage()),
                    " needs bfloat16 as param_sync_dtype, got ", name_of(options.param_sync_dtype()),
                    ": remainders belong to the bfloat16 parameters that ranks send. Leave it unset.");
  TORCH_CHECK_VALUE(options.store_params() || options.stores_remainders() || !options.param_sync_dtype(),
                    "DistributedFusedAdam: param_sync_dtype would round parameters that have no masters. Leave it unset, or "
                    "leave store_params true.");
  TORCH_CHECK_VALUE(options.dtype() == at::kFloat || options.moment_storage() == MomentStorage::float32,
                    "DistributedFusedAdam: dtype ", options.dtype(), " and moment_storage ", name_of(options.moment_storage()),
                    " both choose how moments are stored. Leave one of them float32.");
  detail::ShardedGradsOptions sync;
  sync.group = or_default(options.process_group());
  sync.bucket_bytes = static_cast<int64_t>(options.bucket_cap_mb() * kMiB);
  sync.grad_dtype = options.grad_sync_dtype();
  sync.param_dtype = options.param_sync_dtype();
  sync.overlap = options.overlap_grad_sync();
  sync.average = options.average_grad_sync();
  expect_same(sync.group, described(options), "Options of DistributedFusedAdam");
  return sync;
}

}  // namespace

DistributedFusedAdamOptions& DistributedFusedAdamOptions::store_param_remainders(bool stores) {
  return master_storage(stores ? MasterStorage::remainder16 : MasterStorage::float32);
}

FusedAdamOptions DistributedFusedAdamOptions::adam() const {
  return FusedAdamOptions(lr())
      .bias_correction(bias_correction())
      .betas(betas())
      .eps(eps())
      .adam_w_mode(adam_w_mode())
      .weight_decay(weight_decay())
      .amsgrad(amsgrad())
      .materialize_master_grads(false)
      .moment_storage(dtype() == at::kBFloat16 ? optimizers::MomentStorage::bfloat16 : moment_storage())
      .master_storage(master_storage());
}

// ---- construction ----

DistributedFusedAdam::NoSync::NoSync(std::shared_ptr<detail::ShardedGrads> sync) : sync_(std::move(sync)) {
  sync_->begin_no_sync();
}
DistributedFusedAdam::NoSync::~NoSync() {
  if (sync_) sync_->end_no_sync();
}

DistributedFusedAdam::DistributedFusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                           const DistributedFusedAdamOptions& options)
    : FusedAdam(groups, options.adam()),
      sync_(std::make_shared<detail::ShardedGrads>(checked(options))),
      param_sync_dtype_(options.param_sync_dtype()),
      overlap_param_sync_(options.overlap_param_sync()),
      store_params_(options.store_params() || options.stores_remainders()) {
  if (options.dtype() != at::kFloat) moment_dtype_ = options.dtype();
  sync_->add_params(amp::detail::params_of(param_groups_));
}

DistributedFusedAdam::~DistributedFusedAdam() = default;

detail::ShardedGrads& DistributedFusedAdam::sync() const {
  TORCH_CHECK(sync_,
              "This DistributedFusedAdam was moved from. Use the object that it was moved into: after amp::initialize, the "
              "returned handle.");
  return *sync_;
}

void DistributedFusedAdam::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  finish_param_sync();
  sync();
  FusedAdam::add_param_group(group);
  try {
    sync_->add_params(amp::detail::unique_tensors(group.params()));
  } catch (...) {
    param_groups_.pop_back();
    throw;
  }
}

DistributedFusedAdam::NoSync DistributedFusedAdam::no_sync() {
  sync();
  return NoSync(sync_);
}

// ---- gradients ----

void DistributedFusedAdam::zero_grad(bool) {
  FusedAdam::zero_grad(/*set_to_none=*/true);
  sync().drop();
}

// Within a block, `norm` would sum the gradients as if they carried no scale.
void DistributedFusedAdam::check_unscaled(const char* caller) const {
  TORCH_CHECK(!sync().has_scaled_grads(), "DistributedFusedAdam::", caller,
              " was called inside a scale_loss block, or after blocks with delay_unscale alone, where the gradients are still "
              "scaled. Call it after the block that unscales them.");
}

double DistributedFusedAdam::grad_norm() {
  check_unscaled("grad_norm");
  const double norm = sync().norm().item<float>();
  return norm;
}

double DistributedFusedAdam::clip_grad_norm(double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "DistributedFusedAdam::clip_grad_norm: max_norm must be positive, got ", max_norm);
  check_unscaled("clip_grad_norm");
  return sync().clip(max_norm);
}

// ---- masters ----

at::ScalarType DistributedFusedAdam::sent_dtype(const at::Tensor& param) const {
  return param_sync_dtype_.value_or(param.scalar_type());
}

bool DistributedFusedAdam::has_own_master(const at::Tensor& param) const {
  if (keeps_masters_of(param.scalar_type())) return false;
  return store_params_ && (param.scalar_type() != at::kFloat || sent_dtype(param) != at::kFloat);
}

detail::Part DistributedFusedAdam::part_of(const at::Tensor& param) const {
  return sync().part_of(sync().index_of(param), sync().rank());
}

at::Tensor DistributedFusedAdam::part_of(const at::Tensor& param, const at::Tensor& full) const {
  const detail::Part part = part_of(param);
  return detail::flat(full).narrow(0, part.begin, part.numel);
}

at::Tensor DistributedFusedAdam::master_of(const at::Tensor& param) {
  const at::Tensor own = part_of(param, param);
  if (!has_own_master(param)) return own;
  at::Tensor& master = state_of<FusedAdamParamState>(param).master_param;
  if (!master.defined()) {
    master = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  } else if (const auto* written = record_of(param); !written || !written->matches(param)) {
    master.copy_(with_written_values(param, master));
  }
  return master;
}

const amp::detail::WeightRecord* DistributedFusedAdam::record_of(const at::Tensor& param) const {
  const auto written = written_.find(param.unsafeGetTensorImpl());
  return written == written_.end() ? nullptr : &written->second;
}

// The master with the values that the program wrote into the parameter since the last step: of the elements that differ from
// the rounded master. All others keep the master's precision.
at::Tensor DistributedFusedAdam::with_written_values(const at::Tensor& param, const at::Tensor& master) const {
  const at::Tensor values = part_of(param, param);
  const at::Tensor rounded = master.to(sent_dtype(param)).to(values.scalar_type());
  return at::where(values == rounded, master, values.to(at::kFloat));
}

bool DistributedFusedAdam::has_hidden_writes() const {
  const auto params = amp::detail::params_of(param_groups_);
  return std::any_of(params.begin(), params.end(), [&](const at::Tensor& param) {
    const auto* written = record_of(param);
    return written && written->shows_hidden_write(param);
  });
}

int64_t DistributedFusedAdam::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& item : state_) {
    const auto& state = static_cast<const FusedAdamParamState&>(*item.second);
    bytes += state.exp_avg_codes.nbytes() + state.exp_avg_sq_codes.nbytes();
    for (const at::Tensor& tensor : {state.exp_avg, state.exp_avg_sq, state.master_param, state.remainder}) {
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

// ---- a step ----

bool DistributedFusedAdam::is_stopped() const { return found_inf.defined() && found_inf.item<float>() != 0; }

torch::Tensor DistributedFusedAdam::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  const amp::disable_casts casts_off;
  finish_param_sync();
  check_dtypes();
  sync().finish();
  if (!is_stopped()) {
    const auto params = amp::detail::params_of(param_groups_);
    for (const at::Tensor& param : params) sync_->index_of(param);  // before anything is changed
    sync_->check_all_among(params);
    if (has_hidden_writes()) written_.clear();
    param_sync_ = std::make_shared<detail::ParamSync>(sync_);
    FusedAdam::step();
    param_sync_->start();
    if (overlap_param_sync_) {
      sync_->refuse_passes(
          "A backward pass began before finish_param_sync(): with overlap_param_sync its forward pass may have read parameters "
          "from before the step. Call optimizer.finish_param_sync() before the forward pass.");
    } else {
      finish_param_sync();
    }
  }
  sync_->drop();
  return loss;
}

void DistributedFusedAdam::finish_param_sync() const {
  if (!param_sync_) return;
  const at::NoGradGuard no_grad;
  param_sync_->finish(
      [&](const at::Tensor& param) { written_[param.unsafeGetTensorImpl()] = amp::detail::WeightRecord(param); });
  param_sync_.reset();
  sync_->refuse_passes("");
}

void DistributedFusedAdam::check_dtypes() const {
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto& params = param_groups_[group].params();
    for (size_t i = 0; i < params.size(); ++i) optimizers::detail::check_splits(group, i, params[i], master_storage());
  }
}

std::unique_ptr<torch::optim::Optimizer> DistributedFusedAdam::make_amp_handle(
    const std::shared_ptr<amp::detail::Session>& session) {
  return optimizers::detail::make_amp_handle(*this, session);
}

// ---- amp::ShardedOptimizer ----

std::shared_ptr<amp::GradShards> DistributedFusedAdam::grad_shards() const {
  sync();
  return sync_;
}

}  // namespace apex::parallel
