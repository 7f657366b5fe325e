#include <apex_cpp/amp/casts/boxed_kernel.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <deque>

#include <apex_cpp/amp/casts/cast_plan.h>
#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/kernel_library.h>
#include <apex_cpp/amp/casts/only_copy.h>

namespace apex::amp::detail {
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
    op.redispatchBoxed(keys - plan.off_inside(), stack);
  }

 private:
  const OperatorSlot& slot_;
};

}  // namespace

void register_boxed_kernel(const c10::OperatorName& name, const OperatorSlot& slot) {
  check_only_copy();
  static std::deque<torch::Library> libraries;  // the caller's lock guards it; a kernel lives as long as its library
  auto& library = libraries.emplace_back(kernel_library(kCastKey, std::string(name.getNamespace().value())));
  library.impl(slot.name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(slot)));
}

}  // namespace apex::amp::detail
