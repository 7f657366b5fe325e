#include <apex_cpp/amp/doctor/step_observer.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include <apex_cpp/amp/tensors/map_tensors.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/tensors/tensor_version.h>
#include <apex_cpp/torch_compat/autograd.h>
#include <apex_cpp/torch_compat/private_members.h>

namespace apex::amp::detail {
namespace {

bool is_observed(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.layout() == at::kStrided && !tensor.is_meta();
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

// Operators that only some levels call, or that compute no values.
bool is_left_out(const std::string& op) {
  for (const char* name : {"aten::to.", "aten::_to_copy", "aten::detach", "aten::alias", "aten::empty", "aten::new_empty"}) {
    if (starts_with(op, name)) return true;
  }
  return false;
}

enum class ResultKind { own, view, in_place };

ResultKind result_kind(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  if (!schema) return ResultKind::view;
  ResultKind result = ResultKind::own;
  for (const auto& argument : schema->arguments()) {
    if (!argument.alias_info()) continue;
    if (argument.alias_info()->isWrite()) return ResultKind::in_place;
    result = ResultKind::view;
  }
  return result;
}

// "mine::Rounded" of "torch::autograd::CppNode<mine::Rounded>"; empty for other nodes.
std::string function_class(const torch::autograd::Node& node) {
  const std::string start = "torch::autograd::CppNode<";
  const std::string name = node.name();
  return starts_with(name, start.c_str()) ? name.substr(start.size(), name.size() - start.size() - 1) : "";
}

// The module of a parameter that gets its gradient from the node, directly or through a cast; empty if there is none.
std::string module_by_edges(const torch::autograd::Node& node, const ParameterNames& names) {
  for (const auto& edge : node.next_edges()) {
    const auto* target = edge.function.get();
    if (target && target->num_outputs() == 1) target = target->next_edge(0).function.get();
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(target);
    if (!leaf) continue;
    if (auto module = module_of(leaf->variable, names); !module.empty()) return module;
  }
  return "";
}

}  // namespace

struct StepObserver::Pending : at::ObserverContext {
  StepObserver* observer = nullptr;
  bool outermost = false;
  bool with_grad = false;
  TappedCall tapped;
  ObservedCall call;
};

StepObserver*& StepObserver::current() {
  static thread_local StepObserver* observer = nullptr;
  return observer;
}

void StepObserver::start() {
  outer_ = std::exchange(current(), this);
  stopped_ = false;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&StepObserver::on_start, &StepObserver::on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

void StepObserver::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(stopped_, true)) return;
  at::removeCallback(callback_);
  unlink(current(), this, &StepObserver::outer_);
  copies_.clear();
  bodies_.clear();
  nodes_with_call_.clear();
  kept_alive_.clear();
}

std::vector<ObservedCall> StepObserver::take() {
  stop();
  std::stable_sort(calls_.begin(), calls_.end(), [](const auto& a, const auto& b) { return a.order < b.order; });
  return std::move(calls_);
}

std::unique_ptr<at::ObserverContext> StepObserver::on_start(const at::RecordFunction& function) {
  auto pending = std::make_unique<Pending>();
  if (!function.operator_name() || !current()) return pending;
  StepObserver* const observer = current();
  pending->outermost = observer->depth_ == 0 && torch_compat::graph_task() == torch_compat::kNoGraphTask;
  if (pending->outermost) observer->begin(function, *pending);
  ++observer->depth_;  // after all that may find no memory: the end of such a call is not reported
  pending->observer = observer;
  return pending;
}

void StepObserver::on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!context) return;  // LibTorch reported an error of on_start, such as no memory
  auto& pending = *static_cast<Pending*>(context);
  if (!pending.observer) return;
  --pending.observer->depth_;
  if (pending.outermost) pending.observer->end(function, pending);
}

void StepObserver::begin(const at::RecordFunction& function, Pending& pending) {
  const at::DisableRecordFunctionGuard own_calls;
  const auto names = newest_parameter_names();
  auto& call = pending.call;
  call.op = torch_compat::name_of_call(function);
  pending.with_grad = at::GradMode::is_enabled();
  const ResultKind result = result_kind(function);
  pending.outermost = result != ResultKind::view && !is_left_out(call.op);
  call.returns_new_tensor = result == ResultKind::own;
  bool has_root_weight = false;
  for (const auto& input : torch_compat::inputs_of(function)) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      if (!is_observed(tensor)) return;
      if (const auto* name = names && call.module.empty() ? name_of_parameter(tensor, *names) : nullptr) {
        call.module = module_path_of(*name);
        const bool is_weight = tensor.dim() > 1;  // FP8 rounding finds a weight by name; a bias may come before it
        if (call.module.empty() && (call.root_parameter.empty() || (is_weight && !has_root_weight))) {
          call.root_parameter = *name;
          has_root_weight = is_weight;
        }
      }
      if (pending.with_grad) find_function(tensor);
      if (!pending.with_grad || !pending.outermost) return;
      call.inputs.push_back(copy_of(tensor));
      pending.tapped.inputs.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                                             : torch::autograd::Edge());
    });
  }
  pending.tapped.first_node = at::sequence_number::peek();
}

void StepObserver::end(const at::RecordFunction& function, Pending& pending) {
  const at::DisableRecordFunctionGuard own_calls;
  if (!pending.with_grad) return end_inside_function(function, pending);
  body_is_open_ = false;
  for (const auto& output : function.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      if (!is_observed(tensor)) return;
      pending.call.outputs.push_back(copy_of(tensor));
      pending.tapped.outputs.push_back(tensor);
      if (tensor.grad_fn()) remember(tensor.grad_fn());  // an autograd function inside the operator has no call of its own
    });
  }
  if (pending.call.outputs.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  pending.tapped.number = calls_.size();
  pending.call.order = next_order();
  calls_.push_back(std::move(pending.call));
  tap_gradients(pending.tapped, weak_from_this());
}

// The forward of an autograd function runs its operators with grad mode off. The function is identified later, when its result
// is used.
void StepObserver::end_inside_function(const at::RecordFunction& function, const Pending& pending) {
  if (!std::exchange(body_is_open_, true)) body_ = {{}, "", next_order() - 1};
  if (body_.module.empty()) body_.module = pending.call.module;
  if (pending.call.returns_new_tensor) body_.ops.push_back(pending.call.op);
  for (const auto& output : function.outputs()) {
    for_each_tensor(output, [&](const at::Tensor& tensor) { bodies_[tensor.unsafeGetTensorImpl()] = body_; });
  }
}

void StepObserver::find_function(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  if (!node || nodes_with_call_.count(node.get()) > 0) return;
  remember(node);
  const std::string name = function_class(*node);
  if (name.empty()) return;
  const auto inside = bodies_.find(tensor.unsafeGetTensorImpl());
  ObservedCall call;
  call.op = name;
  call.order = next_order() - 1;
  call.outputs.push_back(copy_of(tensor));
  if (inside != bodies_.end()) {
    call.module = inside->second.module;
    call.inner_ops = inside->second.ops;
    call.order = inside->second.order;
  }
  const auto names = newest_parameter_names();
  if (call.module.empty() && names) call.module = module_by_edges(*node, *names);
  const std::lock_guard<std::mutex> lock(mutex_);
  tap_function(calls_.size(), *node, weak_from_this());
  calls_.push_back(std::move(call));
}

void StepObserver::remember(const NodePtr& node) {
  if (nodes_with_call_.insert(node.get()).second) kept_alive_.push_back(node);
}

at::Tensor StepObserver::copy_of(const at::Tensor& tensor) {
  const auto version = tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
  auto& copy = copies_[tensor.unsafeGetTensorImpl()];
  if (!copy.copy.defined() || copy.version != version) {
    const at::NoGradGuard no_grad;
    copy = {tensor, version, tensor.detach().clone()};
  }
  return copy.copy;
}

void StepObserver::add_output_grad(size_t call, size_t output, const at::Tensor& grad) {
  const at::DisableRecordFunctionGuard own_calls;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_ || !is_observed(grad)) return;
  calls_[call].output_grads[output] = grad.detach().clone();
}

void StepObserver::add_input_grad(size_t call, size_t input, const at::Tensor& grad) {
  const at::DisableRecordFunctionGuard own_calls;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_ || !is_observed(grad)) return;
  auto& sum = calls_[call].input_grads[input];
  sum = sum.defined() ? sum.to(at::kDouble) + grad.detach().to(at::kDouble) : grad.detach().clone();
}

}  // namespace apex::amp::detail
