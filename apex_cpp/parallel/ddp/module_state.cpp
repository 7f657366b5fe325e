#include <apex_cpp/parallel/ddp/module_state.h>

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

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : named) tensors.push_back(each.tensor);
  return tensors;
}

ModuleState::ModuleState(const torch::nn::Module& module)
    : params(each_once(module.named_parameters())), buffers(each_once(module.named_buffers())) {}

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

}  // namespace apex::parallel::detail
