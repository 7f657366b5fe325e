#include <apex_cpp/amp/casts/operator_slot.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/casts/cast_plan.h>
#include <apex_cpp/amp/casts/thread_casts.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace apex::amp::detail {
namespace {

struct Slots {
  std::mutex mutex;
  std::deque<OperatorSlot> all;
  std::unordered_map<std::string, OperatorSlot*> by_name;
  // Results of find_slots, since each `initialize` asks for some hundred names; cleared when overloads are listed again.
  std::unordered_map<std::string, std::vector<OperatorSlot*>> named;
  std::unordered_set<std::string> absent;  // built-in names that LibTorch lacks
};

Slots& slots() {
  static Slots instance;
  return instance;
}

// The caller holds the mutex.
OperatorSlot& find_or_add(const std::string& full_name, bool& added) {
  auto& known = slots();
  const auto [found, is_new] = known.by_name.try_emplace(full_name, nullptr);
  if (is_new) found->second = &known.all.emplace_back(full_name, known.all.size());
  added = is_new;
  return *found->second;
}

std::string short_name_of(const std::string& full_name) {
  const auto start = full_name.find("::") + 2;
  return full_name.substr(start, full_name.find('.', start) - start);
}

bool writes_to_out(const c10::OperatorHandle& op) {
  for (const auto& argument : op.schema().arguments()) {
    if (argument.is_out()) return true;
  }
  return false;
}

// The overloads of an operator. Listing the dispatcher's names is slow, so they are kept, and listed again if an operator is
// missing: its library may have been loaded since. The caller holds the mutex.
const std::vector<c10::OperatorName>& overloads_of(const std::string& name) {
  static std::unordered_map<std::string, std::vector<c10::OperatorName>> known;
  static const std::vector<c10::OperatorName> none;
  if (known.count(name) == 0) {
    known.clear();
    slots().named.clear();
    for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) known[op.name].push_back(op);
  }
  const auto found = known.find(name);
  return found == known.end() ? none : found->second;
}

// The caller holds the mutex.
std::vector<c10::OperatorHandle> operators_named(const std::string& name) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto dot = name.find('.', name.find("::"));
  std::vector<c10::OperatorHandle> found;
  if (dot != std::string::npos) {
    if (auto op = dispatcher.findSchema({name.substr(0, dot), name.substr(dot + 1)})) found.push_back(*op);
    return found;
  }
  for (const auto& overload : overloads_of(name)) {
    const auto op = dispatcher.findSchema(overload);
    if (op && !writes_to_out(*op)) found.push_back(*op);
  }
  return found;
}

// The caller holds the mutex.
std::vector<OperatorSlot*> find_slots(const std::string& name) {
  if (const auto known = slots().named.find(name); known != slots().named.end()) return known->second;
  const auto operators = name.find("::") == std::string::npos ? std::vector<c10::OperatorHandle>() : operators_named(name);
  if (operators.empty()) return {};
  std::vector<OperatorSlot*> result;
  for (const auto& op : operators) {
    bool added = false;
    auto& slot = find_or_add(toString(op.operator_name()), added);
    if (added) register_boxed_kernel(op.operator_name(), slot);
    result.push_back(&slot);
  }
  slots().named.emplace(name, result);
  return result;
}

}  // namespace

OperatorSlot::OperatorSlot(std::string full_name, size_t slot_index)
    : name(std::move(full_name)), short_name(short_name_of(name)), index(slot_index) {}

std::string full_operator_name(const char* name, const char* overload) {
  return *overload ? std::string(name) + "." + overload : name;
}

OperatorSlot& operator_slot(const char* name, const char* overload) {
  const std::lock_guard<std::mutex> lock(slots().mutex);
  bool added = false;
  return find_or_add(full_operator_name(name, overload), added);
}

std::vector<OperatorSlot*> slots_named(const std::string& name) {
  const std::lock_guard<std::mutex> lock(slots().mutex);
  auto found = find_slots(name);
  TORCH_CHECK_VALUE(!found.empty(), "amp: there is no operator '", name,
                    "'. Write the name as in LibTorch's schemas, such as \"aten::mish\" or \"aten::add.Tensor\", and load the "
                    "library that defines the operator first.");
  return found;
}

std::vector<OperatorSlot*> built_in_slots(const std::string& name) {
  const std::lock_guard<std::mutex> lock(slots().mutex);
  if (slots().absent.count(name) > 0) return {};
  auto found = find_slots(name);
  if (found.empty()) slots().absent.insert(name);
  return found;
}

size_t num_operator_slots() {
  const std::lock_guard<std::mutex> lock(slots().mutex);
  return slots().all.size();
}

namespace {

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

void look(ArgumentTypes& types, const c10::IValue& value) {
  if (value.isTensor()) {
    types.add(value.toTensor());
  } else if (value.isTensorList()) {
    types.add_list(value.toTensorVector());
  }
}

void cast(const CastPlan& plan, c10::IValue& value) {
  if (value.isTensor()) {
    if (plan.casts(value.toTensor())) value = plan.cast(value.toTensor());
  } else if (value.isTensorList() && plan.casts_list(value.toTensorVector())) {
    std::vector<at::Tensor> elements = value.toTensorVector();
    for (auto& element : elements) element = plan.cast(element);
    value = std::move(elements);
  }
}

class BoxedKernel : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const OperatorSlot& slot) : slot_(slot) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    keys = keys & kBelowCastKey;
    const CallPolicies policies(slot_);
    if (!policies.any()) return op.redispatchBoxed(keys, stack);
    const auto& arguments = op.schema().arguments();
    const auto values = torch::jit::last(*stack, arguments.size());
    ArgumentTypes types;
    types.rules = policies.rules();
    for (const auto& value : values) look(types, value);
    const CastPlan plan = policies.plan(types);
    const c10::impl::ExcludeDispatchKeyGuard off(plan.off_inside());
    const size_t first = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_written(arguments[i])) cast(plan, (*stack)[first + i]);
    }
    const Float8Pause pause(policies.round_to_float8());
    op.redispatchBoxed(keys - plan.off_inside(), stack);
  }

 private:
  const OperatorSlot& slot_;
};

}  // namespace

void register_boxed_kernel(const c10::OperatorName& name, const OperatorSlot& slot) {
  check_only_copy();
  static std::deque<torch::Library> libraries;  // guarded by the caller's lock; a kernel lives as long as its library
  auto& library = libraries.emplace_back(kernel_library(kCastKey, std::string(name.getNamespace().value())));
  library.impl(slot.name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(slot)));
}

void cast_as(const OperatorSlot& slot, std::initializer_list<at::Tensor*> tensors) {
  if (!are_casts_on()) return;
  const CallPolicies policies(slot);
  if (!policies.any()) return;
  ArgumentTypes types;
  types.rules = policies.rules();
  for (const at::Tensor* tensor : tensors) types.add(*tensor);
  const CastPlan plan = policies.plan(types);
  if (!plan.takes_over()) return;
  for (at::Tensor* tensor : tensors) {
    if (plan.casts(*tensor)) *tensor = plan.cast(*tensor);
  }
}

// The first copy registers the fallback of the engine's key and keeps it while it is loaded.
bool is_only_copy() {
  static const std::optional<torch::Library> fallback = fallthrough_library(kCastKey);
  return fallback.has_value();
}

void check_only_copy() {
  TORCH_CHECK(is_only_copy(),
              "Two copies of apex_cpp are loaded in this process, and the casts of one would replace those of the other. If "
              "the program and its plugins, or several shared libraries, use apex_cpp, link all of them with the shared "
              "library: find_package(apex_cpp COMPONENTS shared), or BUILD_SHARED_LIBS=ON.");
}

}  // namespace apex::amp::detail

namespace apex::amp {
namespace {

using detail::CastPolicy;

void set_user_policy(const std::string& op, CastPolicy policy) {
  for (auto* slot : detail::slots_named(op)) slot->user_policy.store(policy, std::memory_order_relaxed);
}

}  // namespace

void register_half_function(const std::string& op) { set_user_policy(op, CastPolicy::half); }
void register_float_function(const std::string& op) { set_user_policy(op, CastPolicy::float32); }
void register_promote_function(const std::string& op) { set_user_policy(op, CastPolicy::promote); }
void unregister_function(const std::string& op) { set_user_policy(op, CastPolicy::none); }

}  // namespace apex::amp
