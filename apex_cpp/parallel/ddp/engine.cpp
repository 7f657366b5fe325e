#include <apex_cpp/parallel/ddp/engine.h>

#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/processes/process_group.h>
#include <apex_cpp/torch_compat/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace apex::parallel::detail {
namespace {

std::string names_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", '" : "'") + names[i] + "'";
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

std::vector<int> each_once_in_order(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// A second DistributedDataParallel would reduce the gradients again.
void check_unwrapped(const std::vector<NamedTensor>& params) {
  for (const auto& [name, param] : params) {
    TORCH_CHECK(
        !amp::detail::grad_sync_of(param), "DistributedDataParallel was given the parameter '", name,
        "', which is already in a DistributedDataParallel. Destroy the earlier one first, or wrap the model only once.");
  }
}

}  // namespace

// ---- construction ----

std::shared_ptr<DdpEngine> DdpEngine::attach(const torch::nn::Module& module, const DistributedDataParallelOptions& options) {
  check(options);
  ModuleState state(module);
  check_unwrapped(state.params);
  check_same_on_all_ranks(options);
  const auto group = first_group_for(options);
  state.check_same_on_all_ranks(group, "The model given to DistributedDataParallel");
  state.check_same_amp_on_all_ranks(group);
  state.check_trained_dtypes();
  std::shared_ptr<DdpEngine> engine(new DdpEngine(std::move(state), options));
  const std::string what = "broadcasting rank 0's parameters and buffers for DistributedDataParallel";
  std::vector<at::Tensor> tensors = tensors_of(engine->state_.params);
  if (options.broadcast_buffers()) {
    for (const at::Tensor& buffer : tensors_of(engine->state_.buffers)) {
      if (buffer.layout() != at::kStrided) continue;
      amp::detail::remove_internal_overlap(buffer);
      tensors.push_back(buffer);
    }
  }
  flat_dist_call(tensors, broadcast_from(0, group, what));
  engine->state_.share_masters(group);
  amp::detail::set_grad_sync(tensors_of(engine->state_.params), engine);
  engine->follow_trained_params();
  return engine;
}

DdpEngine::DdpEngine(ModuleState state, const DistributedDataParallelOptions& options)
    : state_(std::move(state)), options_(options) {
  options_.process_group(or_default(options.process_group()));
  groups_ = groups_for(options_);
  check_devices();
}

DdpEngine::~DdpEngine() { amp::detail::drop_grad_sync(tensors_of(state_.params), *this); }

void DdpEngine::check_devices() const {
  if (!device_for(groups_.front()).is_cuda()) return;
  const auto check_on_gpu = [&](const char* kind, const std::vector<NamedTensor>& named) {
    for (const auto& [name, tensor] : named) {
      TORCH_CHECK(tensor.is_cuda(), "DistributedDataParallel on rank ", groups_.front()->getRank(), ": the ", kind, " '", name,
                  "' is on the ", tensor.device(),
                  ", and NCCL reduces and broadcasts CUDA tensors. Move the model to the GPU first, or use a Gloo group.");
    }
  };
  check_on_gpu("parameter", state_.params);
  if (options_.broadcast_buffers()) check_on_gpu("buffer", state_.buffers);
}

BucketArithmetic DdpEngine::arithmetic() const {
  const double factor = options_.gradient_predivide_factor();
  BucketArithmetic arithmetic;
  arithmetic.in_float32 = options_.allreduce_always_fp32();
  arithmetic.before = 1.0 / factor;
  arithmetic.after = options_.gradient_average() ? factor / groups_.front()->getSize() : 1.0;
  arithmetic.keeps_views = options_.retain_allreduce_buffers();
  arithmetic.may_lack = options_.delay_allreduce();
  arithmetic.profiled = options_.prof();
  return arithmetic;
}

// ---- which parameters are trained ----

std::vector<size_t> DdpEngine::trained_now() const {
  std::vector<size_t> trained;
  for (size_t i = 0; i < state_.params.size(); ++i) {
    if (state_.params[i].tensor.requires_grad()) trained.push_back(i);
  }
  return trained;
}

void DdpEngine::hook_new_params() {
  for (const size_t index : trained_) {
    if (hooks_.has(index)) continue;
    hooks_.add(state_.params[index].tensor, index, [weak = weak_from_this()](size_t arrived) {
      if (const auto engine = weak.lock()) engine->on_gradient(arrived);
    });
  }
}

void DdpEngine::check_hooks_hear(const std::vector<size_t>& indices) const {
  for (const size_t index : indices) {
    const auto& [name, param] = state_.params[index];
    TORCH_CHECK(!hooks_.has(index) || hooks_.hears(param, index), "DistributedDataParallel on rank ",
                groups_.front()->getRank(), ": the parameter '", name, "' was converted or moved, to ", param.scalar_type(),
                " on ", param.device(),
                ", after it was wrapped, and its gradient would stay on this rank. Convert or move the model first, then wrap "
                "it.");
  }
}

void DdpEngine::follow_trained_params() {
  auto now = trained_now();
  check_hooks_hear(now);
  if (now == trained_) return;
  trained_ = std::move(now);
  buckets_.clear();
  hook_new_params();
  if (options_.delay_allreduce()) make_buckets(plan_by_type(state_.params, trained_));
}

void DdpEngine::make_buckets(const BucketPlan& plan) {
  place_of_.assign(state_.params.size(), Place{});
  for (size_t i = 0; i < plan.size(); ++i) {
    std::vector<NamedTensor> params;
    for (const size_t index : plan[i]) params.push_back(state_.params[index]);
    auto& bucket =
        buckets_.emplace_back(std::move(params), groups_[i % groups_.size()], "bucket " + std::to_string(i), arithmetic());
    for (size_t position = 0; position < plan[i].size(); ++position) place_of_[plan[i][position]] = {&bucket, position};
  }
}

// ---- a backward pass ----

void DdpEngine::begin_forward() {
  const std::lock_guard<std::mutex> lock(mutex_);
  filled_ = false;
  if (graph_task_ == kNoPass) follow_trained_params();
}

void DdpEngine::on_gradient(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::Tensor& param = state_.params[index].tensor;
  if (!param.requires_grad()) return;  // frozen after the forward pass: no gradient
  // Autograd also calls the hook where a node returns an undefined gradient, as for an unused result of a checkpoint.
  const bool has_grad = param.grad().defined();
  if (paused_ > 0) {
    if (has_grad) set_unreduced(true);
    return;
  }
  const int graph_task = torch_compat::graph_task();
  if (graph_task != graph_task_) begin_pass(graph_task);
  if (!has_grad) return;
  TORCH_CHECK(!has_arrived_[index], "DistributedDataParallel on rank ", groups_.front()->getRank(), ": the gradient of '",
              state_.params[index].name, "' was computed twice in one backward pass.");
  has_arrived_[index] = true;
  arrival_.push_back(index);
  if (buckets_.empty() || options_.delay_allreduce()) return;
  place_of_[index].bucket->arrive(place_of_[index].position);
  launch_complete();
}

void DdpEngine::begin_pass(int graph_task) {
  abandon_pass();
  if (std::exchange(check_is_due_, false)) check_last_pass();
  TORCH_CHECK(
      !filled_,
      "DistributedDataParallel: a backward pass would fill retained allreduce buffers that are filled already. Call the "
      "forward pass of the DistributedDataParallel before each backward pass.");
  retained_.clear();
  follow_trained_params();
  graph_task_ = graph_task;
  ++pass_;
  arrival_.clear();
  has_arrived_.assign(state_.params.size(), false);
  for (auto& bucket : buckets_) bucket.begin_pass();
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto engine = weak.lock()) engine->end_pass();
  });
}

void DdpEngine::launch_complete() {
  for (; launched_ < buckets_.size() && buckets_[launched_].is_complete(); ++launched_) {
    buckets_[launched_].launch(pass_);
  }
}

void DdpEngine::end_pass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (graph_task_ == kNoPass) return;
  if (buckets_.empty() || options_.delay_allreduce()) {
    take_grads_at_end();
  } else if (is_unreduced()) {
    take_unreduced_grads();
  }
  reduce_rest();
  graph_task_ = kNoPass;
  set_unreduced(false);
  filled_ = options_.retain_allreduce_buffers();
  for (const auto& bucket : buckets_) {
    if (filled_) retained_.push_back(bucket.kept());
  }
  check_is_due_ = !can_check_at_once();
  if (!check_is_due_) check_last_pass();
}

// Loss scales may have been loaded since construction. From the first pass on all ranks change them in the same way.
void DdpEngine::check_amp_once() {
  if (amp_is_checked_) return;
  state_.check_same_amp_on_all_ranks(groups_.front());
  amp_is_checked_ = true;
  state_.session.reset();
}

// Ranks that train different parameters would have different buckets.
void DdpEngine::check_same_trained() const {
  std::ostringstream text;
  for (const size_t index : trained_) text << state_.params[index].name << "\n";
  expect_same(groups_.front(), text.str(), "The parameters that DistributedDataParallel trains");
}

// Reads the gradients, not the hooks' records: an unfrozen parameter may have got its gradient before its hook was installed.
void DdpEngine::take_grads_at_end() {
  if (buckets_.empty() || !amp_is_checked_) check_same_trained();
  check_amp_once();
  if (buckets_.empty()) make_buckets(plan_after_arrival());
  for (const size_t index : trained_) {
    if (state_.params[index].tensor.grad().defined()) place_of_[index].bucket->arrive(place_of_[index].position);
  }
}

// Passes within no_sync may have used parameters that this pass does not use. Buckets of such parameters are not launched yet.
void DdpEngine::take_unreduced_grads() {
  for (const size_t index : trained_) {
    if (has_arrived_[index] || !state_.params[index].tensor.grad().defined()) continue;
    place_of_[index].bucket->arrive(place_of_[index].position);
  }
}

// Adds parameters without a gradient at the end, so that all ranks plan for the same parameters.
BucketPlan DdpEngine::plan_after_arrival() const {
  std::vector<size_t> order = arrival_;
  for (const size_t index : trained_) {
    if (!has_arrived_[index]) order.push_back(index);
  }
  return agreed_plan(groups_.front(), plan_by_arrival(state_.params, order, options_));
}

void DdpEngine::reduce_rest() {
  for (; launched_ < buckets_.size(); ++launched_) buckets_[launched_].launch(pass_);
  for (auto& bucket : buckets_) bucket.finish();
  launched_ = 0;
}

void DdpEngine::abandon_pass() {
  if (graph_task_ == kNoPass) return;
  for (auto& bucket : buckets_) bucket.abandon();
  graph_task_ = kNoPass;
  launched_ = 0;
}

bool DdpEngine::can_check_at_once() const {
  return std::all_of(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return bucket.is_on_cpu(); }) ||
         std::any_of(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return bucket.lacked(); });
}

void DdpEngine::check_last_pass() const {
  check_same_pass();
  check_same_params();
  check_all_there();
}

// After a pass that only some ranks completed, ranks would disagree on the next bucket.
void DdpEngine::check_same_pass() const {
  for (const auto& bucket : buckets_) {
    const auto ranks = bucket.tail().ranks_in_another_pass();
    if (ranks.empty()) continue;
    fail(groups_.front(), "a backward pass of DistributedDataParallel",
         amp::detail::ranks_text(ranks) +
             " sent gradients of a different pass. A rank whose backward pass throws must not continue alone: end the program, "
             "or leave the pass on all ranks.");
  }
}

// With delay_allreduce each rank makes its buckets alone. Those of different parameters may have the same size, and the sum
// over ranks would mix the parameters.
void DdpEngine::check_same_params() const {
  for (const auto& bucket : buckets_) {
    const auto ranks = bucket.tail().ranks_with_other_params();
    if (ranks.empty()) continue;
    std::vector<std::string> names;
    for (const auto& each : bucket.params()) names.push_back(each.name);
    TORCH_CHECK(false, "DistributedDataParallel on rank ", groups_.front()->getRank(),
                ": the backward pass summed the gradients of ", names_of(names), " with those of other parameters on ",
                amp::detail::ranks_text(ranks),
                ". Freeze and unfreeze the same parameters on every rank. Discard the gradients of this pass.");
  }
}

void DdpEngine::check_all_there() const {
  if (options_.delay_allreduce()) return;
  std::vector<std::string> names;
  std::vector<int> ranks;
  for (const auto& bucket : buckets_) {
    const auto lacking = bucket.tail().ranks_that_lack();
    if (lacking.empty()) continue;
    ranks.insert(ranks.end(), lacking.begin(), lacking.end());
    const auto is_missing = bucket.tail().counted();
    for (size_t i = 0; i < is_missing.size(); ++i) {
      if (is_missing[i]) names.push_back(bucket.params()[i].name);
    }
  }
  TORCH_CHECK(names.empty(), "DistributedDataParallel on rank ", groups_.front()->getRank(),
              ": the backward pass gave no gradient to ", names_of(names), " on ",
              amp::detail::ranks_text(each_once_in_order(ranks)),
              ", and a bucket waits for all of its gradients. Freeze parameters that the loss never uses, with "
              "requires_grad_(false). If the input decides which parameters are used, set "
              "DistributedDataParallelOptions().delay_allreduce(true). Discard the gradients of this pass.");
}

// ---- queries ----

std::vector<at::Tensor> DdpEngine::allreduce_buffers() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return retained_;
}

void DdpEngine::take_maximum(const at::Tensor& values) const {
  all_reduce_copy(groups_.front(), values, "taking the maximum over the ranks", c10d::ReduceOp::MAX);
}

std::vector<int> DdpEngine::ranks_with_nonfinite(const at::Tensor& param) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& bucket : buckets_) {
    if (bucket.has(param)) return bucket.tail().ranks_with_nonfinite();
  }
  return {};
}

}  // namespace apex::parallel::detail
