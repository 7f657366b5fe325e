#include <apex_cpp/parallel/ddp/module_state.h>

#include <apex_cpp/amp/handles/forward_casts.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <sstream>
#include <unordered_set>

namespace apex::parallel::detail {
namespace {

template <class Items>
std::vector<NamedTensor> each_once(const Items& items) {
  std::vector<NamedTensor> once;
  std::unordered_set<const at::TensorImpl*> met;
  for (const auto& item : items) {
    if (met.insert(item.value().unsafeGetTensorImpl()).second) once.push_back({item.key(), item.value()});
  }
  return once;
}

void describe(const char* kind, const std::vector<NamedTensor>& named, std::ostream& text) {
  for (const auto& [name, tensor] : named) {
    text << kind << " '" << name << "', shape " << tensor.sizes() << ", strides " << tensor.strides() << ", "
         << tensor.scalar_type() << ", on " << tensor.device().type() << (tensor.requires_grad() ? ", trained" : "") << "\n";
  }
}

std::shared_ptr<amp::detail::Session> session_of(const torch::nn::Module& module) {
  const auto* patched = dynamic_cast<const amp::detail::CastsForward*>(&module);
  return patched ? patched->amp_casts().session : nullptr;
}

// The module's own, not the newest: a rank may have initialized another model alone.
std::shared_ptr<amp::detail::Session> session_within(const torch::nn::Module& module) {
  if (auto session = session_of(module)) return session;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto session = session_of(*child)) return session;
  }
  return nullptr;
}

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : named) tensors.push_back(each.tensor);
  return tensors;
}

ModuleState::ModuleState(const torch::nn::Module& module)
    : params(each_once(module.named_parameters())),
      buffers(each_once(module.named_buffers())),
      session(session_within(module)) {}

void ModuleState::check_same_on_all_ranks(const ProcessGroup& group, const std::string& what) const {
  std::ostringstream text;
  describe("parameter", params, text);
  describe("buffer", buffers, text);
  try {
    expect_same(group, text.str(), what);
  } catch (c10::ValueError& error) {
    error.add_context("Ranks whose dtypes differ have most likely called amp::initialize at different opt levels.");
    throw;
  }
}

void ModuleState::check_same_amp_on_all_ranks(const ProcessGroup& group) const { expect_same_amp(group, session.get()); }

void ModuleState::check_trained_dtypes() const {
  for (const auto& [name, param] : params) {
    const auto dtype = param.scalar_type();
    TORCH_CHECK_TYPE(amp::detail::is_real_float(dtype) || !param.requires_grad(),
                     "DistributedDataParallel was given the trained parameter '", name, "' in ", dtype,
                     "; it averages float16, bfloat16, float32 and float64. Hold a complex one as its torch::view_as_real, or "
                     "freeze it.");
  }
}

}  // namespace apex::parallel::detail
