#include <apex_cpp/amp/casts/cast_plan.h>

#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <iostream>

namespace apex::amp::detail {
namespace {

bool is_error_policy(CastPolicy policy) { return policy == CastPolicy::float_inplace || policy == CastPolicy::banned; }

// The smallest probability that the 16-bit type rounds to 1: half of its last step below 1.
double rounds_to_one(c10::ScalarType low_type) { return 1 - (low_type == at::kHalf ? 0x1p-12 : 0x1p-9); }

// O1-40
void check_not_banned(const OperatorSlot& slot, FloatTypes types, c10::ScalarType low_type) {
  TORCH_CHECK_NOT_IMPLEMENTED(!types.has(low_type), "amp does not work out-of-the-box with ", slot.name, ": its input is ",
                              low_type, ", in which every probability above ", rounds_to_one(low_type),
                              " is rounded to 1, so that the loss of a confident mistake is wrong. Use "
                              "binary_cross_entropy_with_logits, which takes the values before the sigmoid; or, if the sigmoid "
                              "must stay, register it with amp::register_float_function(\"aten::sigmoid\"), or set "
                              "InitializeOptions().allow_banned(true) to run this function in float32.");
}

// O1-30
void check_inplace(const OperatorSlot& slot, FloatTypes self, c10::ScalarType low_type) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.has(low_type), "amp runs ", slot.short_name.substr(0, slot.short_name.size() - 1),
                              " in float32, so the in-place ", slot.name, " cannot write to a ", low_type,
                              " tensor. Use the out-of-place function, or convert the tensor to float32 first.");
}

// Without gradients a cast is kept only within one forward pass of a handle, whose end drops it.
bool may_keep_casts(const ThreadCasts& thread) {
  return (at::GradMode::is_enabled() || thread.forward != 0) && !c10::InferenceMode::is_enabled();
}

}  // namespace

void CastPlan::add_step(FloatTypes from, c10::ScalarType to, bool cached) {
  steps_[num_steps_++] = {from, to, cached};
  from_ |= from;
}

FloatTypes CastPlan::after_steps(FloatTypes types) const {
  for (int i = 0; i < num_steps_; ++i) {
    const FloatTypes left = types.without(steps_[i].from);
    types = left == types ? types : left | FloatTypes(steps_[i].to);
  }
  return types;
}

void CastPlan::apply(CastPolicy policy, const ArgumentTypes& arguments) {
  const FloatTypes types = after_steps(arguments.all);
  const auto low = rules_->low_type();
  const bool match = rules_->mode() == CastRules::Mode::match;
  switch (policy) {
    case CastPolicy::half:
      return match ? follow(arguments.all, arguments) : add_step(FloatTypes::all().without(FloatTypes(low)), low, true);
    case CastPolicy::float32:
      return match ? add_step(kLowTypes, at::kFloat, false) : to_float32();
    case CastPolicy::promote:
      return promote(types);
    case CastPolicy::sequence:
      return promote(after_steps(arguments.in_lists));
    case CastPolicy::match_self:
      return follow_self(arguments);
    case CastPolicy::follow_weights:
      return follow(arguments.later, arguments);
    case CastPolicy::float_inplace:
      check_inplace(*slot_, arguments.self.value_or(FloatTypes()), low);
      return to_float32();
    case CastPolicy::banned:
      return check_not_banned(*slot_, types, low);
    case CastPolicy::widen:
      return widen(types);
    case CastPolicy::none:
    case CastPolicy::opaque:
      return;
  }
}

void CastPlan::apply_to_mix(CastPolicy policy, const ArgumentTypes& arguments) {
  switch (policy) {
    case CastPolicy::half:
      return follow(arguments.all, arguments);
    case CastPolicy::match_self:
      return follow_self(arguments);
    case CastPolicy::follow_weights:
      return follow(arguments.later, arguments);
    case CastPolicy::float32:
    case CastPolicy::promote:
      return promote(arguments.all);
    case CastPolicy::widen:
      return widen(arguments.all);
    default:
      return;
  }
}

void CastPlan::to_float32() { add_step(FloatTypes::all().without(FloatTypes(at::kFloat)), at::kFloat, false); }

// O1-07, O1-08. PyTorch's own promotion handles any other mix.
void CastPlan::promote(FloatTypes types) {
  const FloatTypes low = types.without(FloatTypes(at::kFloat));
  const bool widest_is_float = types.is_mix() && !low.is_mix() && !low.has(at::kDouble);
  if (widest_is_float) add_step(low, at::kFloat, false);
}

void CastPlan::widen(FloatTypes types) {
  if (types.without(kLowTypes) == types) return;
  add_step(kLowTypes, types.has(at::kDouble) ? at::kDouble : at::kFloat, false);
}

// O1-09
void CastPlan::follow_self(const ArgumentTypes& arguments) {
  for (const auto type : {at::kFloat, rules_->low_type()}) {
    if (arguments.self && *arguments.self == FloatTypes(type))
      add_step(FloatTypes::all().without(*arguments.self), type, false);
  }
}

// Casts FP32 arguments to the 16-bit type of `leaders`, which are some of the arguments.
void CastPlan::follow(FloatTypes leaders, const ArgumentTypes& arguments) {
  if (!arguments.all.has(at::kFloat)) return;
  for (const auto low : {at::kHalf, at::kBFloat16}) {
    if (leaders.without(FloatTypes(at::kFloat)) == FloatTypes(low)) add_step(FloatTypes(at::kFloat), low, false);
  }
}

at::Tensor CastPlan::cast(const at::Tensor& tensor) const {
  const bool first = steps_[0].from.has(tensor.scalar_type());
  const at::Tensor result = first ? cast_once(tensor, steps_[0]) : tensor;
  return num_steps_ == 2 && steps_[1].from.has(result.scalar_type()) ? cast_once(result, steps_[1]) : result;
}

at::Tensor CastPlan::cast_once(const at::Tensor& tensor, const Step& step) const {
  bool hit = false;
  at::Tensor result;
  if (step.cached && rules_->may_be_weight(tensor) && may_keep_casts(*thread_)) {
    result = rules_->cast_weight(tensor, step.to, thread_->forward, hit);
  }
  if (!result.defined()) {
    check_not_stale(tensor);
    result = tensor.to(step.to);
  }
  if (rules_->prints_casts() && !hit) {
    std::cout << tensor.scalar_type() << "->" << step.to << " (" << slot_->short_name << ")" << std::endl;
  }
  if (thread_->recorder) thread_->recorder->add_cast(tensor.scalar_type(), step.to, hit);
  return result;
}

// `initialize` gives a parameter new memory; a view made before keeps the old memory.
void CastPlan::check_not_stale(const at::Tensor& tensor) const {
  if (rules_->mode() != CastRules::Mode::match || !tensor.is_view()) return;
  const at::Tensor base(tensor._base());
  const bool is_stale = is_low_precision(base.scalar_type()) && base.scalar_type() != tensor.scalar_type();
  TORCH_CHECK(
      !is_stale || !rules_->is_parameter(base), slot_->name, " was given a ", tensor.scalar_type(), " view, of shape ",
      tensor.sizes(), ", of the parameter ", rules_->name_of(base), ", which amp::initialize has since cast to ",
      base.scalar_type(),
      ": the view still has the values from before the cast. Take views of parameters in forward, not in the constructor.");
}

CallPolicies::CallPolicies(const OperatorSlot& slot) : slot_(slot), thread_(thread_casts()) {
  const RulesInForce in_force = rules_in_force(thread_);
  rules_ = in_force.rules;
  only_mixes_ = in_force.only_mixes;
  disabled_ = in_force.disabled;
  in_forward_ = in_force.in_forward;
  if (!rules_) return;
  keeps_function_ = !in_force.in_backward && rules_->keeps_float32(slot);
  keeps_ = keeps_function_ || (!in_force.in_backward && rules_->keeps_modules());
  listed_ = rules_->policy(slot);
  rounds_to_float8_ = rules_->rounds_to_float8() && listed_ == CastPolicy::half && !in_force.in_backward && !disabled_ &&
                      !keeps_function_ && !thread_.float8_paused;
  if (rules_->mode() != CastRules::Mode::casts) return;
  if (!only_mixes_) user_ = slot.user_policy.load(std::memory_order_relaxed);
  // At O1 and O4 LibTorch refuses, for these policies, a mix of types (at the latest in the backward pass) or 16 bits. For the
  // others it does with some operators.
  const bool is_refused = listed_ == CastPolicy::half || listed_ == CastPolicy::widen;
  if (only_mixes_ && !is_refused && listed_ != CastPolicy::none) listed_ = rules_->policy_for_mixes(slot);
}

bool CallPolicies::stays_wide(const ArgumentTypes& arguments) const {
  if (rules_->mode() != CastRules::Mode::casts || arguments.all.empty()) return false;
  const bool on_cpu_alone = rules_->leaves_cpu_tensors() && arguments.on_cpu;
  const bool data_of_program = arguments.all == FloatTypes(at::kDouble) && !arguments.float64_requires_grad && !in_forward_;
  return data_of_program || (on_cpu_alone && arguments.all.without(kLowTypes) == arguments.all);
}

CastPlan CallPolicies::plan(const ArgumentTypes& arguments) const {
  CastPlan plan(rules_, &slot_, &thread_);
  const bool off = disabled_ && rules_->mode() == CastRules::Mode::casts;
  if (keeps_ && !off && (keeps_function_ || arguments.kept)) {
    plan.keep_float32();
    return plan;
  }
  if (listed_ == CastPolicy::none && user_ == CastPolicy::none) return {};
  if (only_mixes_) {
    plan.apply_to_mix(listed_, arguments);
    return plan.has_steps() ? plan : CastPlan();
  }
  if (off) {
    // O1-32, O1-40: these errors are thrown even while casts are off.
    if (is_error_policy(listed_)) plan.apply(listed_, arguments);
    return CastPlan::disabled();
  }
  if (!stays_wide(arguments)) plan.apply(listed_, arguments);
  plan.apply(user_, arguments);
  // A program at O2 may also use LibTorch's autocast, which keeps calls that need no matching.
  return rules_->mode() == CastRules::Mode::match && !plan.has_steps() ? CastPlan() : plan;
}

CastPlan plan_for_call(CastPolicy policy, const OperatorSlot& name, const ArgumentTypes& arguments) {
  if (!are_casts_on()) return {};
  const auto& thread = thread_casts();
  const RulesInForce in_force = rules_in_force(thread);
  const CastRules* const rules = in_force.rules;
  if (!rules || in_force.only_mixes || in_force.disabled || rules->mode() != CastRules::Mode::casts) return {};
  CastPlan plan(rules, &name, &thread);
  arguments.kept ? plan.keep_float32() : plan.apply(policy, arguments);
  return plan;
}

namespace {

/// The names of wrapped callables in printed casts.
const OperatorSlot& function_name(CastPolicy policy) {
  static const OperatorSlot half("amp::half_function", 0), float32("amp::float_function", 0),
      promote("amp::promote_function", 0);
  if (policy == CastPolicy::half) return half;
  return policy == CastPolicy::float32 ? float32 : promote;
}

}  // namespace

bool is_kept_in_float32(const at::Tensor& tensor) {
  const CastRules* const rules = are_casts_on() ? rules_in_force(thread_casts()).rules : nullptr;
  return rules && rules->keeps_float32(tensor);
}

std::shared_ptr<const CastPlan> plan_for_function(CastPolicy policy, const FunctionArgumentTypes& arguments) {
  ArgumentTypes types;
  types.all = arguments.all;
  types.self = arguments.first;
  types.kept = arguments.kept;
  const CastPlan plan = plan_for_call(policy, function_name(policy), types);
  return plan.takes_over() ? std::make_shared<const CastPlan>(plan) : nullptr;
}

at::Tensor cast_by(const CastPlan& plan, const at::Tensor& tensor) { return plan.casts(tensor) ? plan.cast(tensor) : tensor; }

}  // namespace apex::amp::detail
