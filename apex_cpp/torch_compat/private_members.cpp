#include <apex_cpp/torch_compat/private_members.h>

#include <ATen/record_function.h>
#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

namespace apex::torch_compat {
namespace {

// Access is not checked in an explicit instantiation, so that it may name a private member.
template <auto member>
struct OpenArchive {
  friend torch::jit::Module& opened(torch::serialize::OutputArchive& archive) { return archive.*member; }
};
template struct OpenArchive<&torch::serialize::OutputArchive::module_>;
torch::jit::Module& opened(torch::serialize::OutputArchive& archive);

template <auto member>
struct OpenModule {
  friend bool& opened(torch::nn::Module& module) { return module.*member; }
};
template struct OpenModule<&torch::nn::Module::is_training_>;
bool& opened(torch::nn::Module& module);

template <auto member>
struct OpenRecordFunction {
  friend const c10::ArrayRef<const c10::IValue>& opened(const at::RecordFunction& function) { return function.*member; }
};
template struct OpenRecordFunction<&at::RecordFunction::inputs_>;
const c10::ArrayRef<const c10::IValue>& opened(const at::RecordFunction& function);

// A derived class may name a protected member.
struct OpenOptimizer : torch::optim::Optimizer {
  static constexpr auto kDefaults = &OpenOptimizer::defaults_;
};

}  // namespace

torch::jit::Module& module_in(torch::serialize::OutputArchive& archive) { return opened(archive); }

bool& training_flag(torch::nn::Module& module) { return opened(module); }

c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function) { return opened(function); }

std::unique_ptr<torch::optim::OptimizerOptions>& defaults_of(torch::optim::Optimizer& optimizer) {
  return optimizer.*(OpenOptimizer::kDefaults);
}

const std::unique_ptr<torch::optim::OptimizerOptions>& defaults_of(const torch::optim::Optimizer& optimizer) {
  return optimizer.*(OpenOptimizer::kDefaults);
}

void keep_options(std::vector<torch::optim::OptimizerParamGroup>& groups,
                  const std::vector<torch::optim::OptimizerParamGroup>& added) {
  const size_t first = groups.size() - added.size();
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i].has_options()) groups[first + i].set_options(added[i].options().clone());
  }
}

const char* text_of(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch ? torch->what_without_backtrace() : error.what();
}

c10::intrusive_ptr<c10::StorageImpl> share_until_written(c10::StorageImpl& storage) {
  return c10::impl::cow::lazy_clone_storage(storage);
}

bool is_shared_until_written(const c10::StorageImpl& storage) { return c10::impl::cow::is_cow_data_ptr(storage.data_ptr()); }

std::string name_of_call(const at::RecordFunction& function) {
  const std::string overload = function.overload_name();
  return function.name() + (overload.empty() ? "" : "." + overload);
}

}  // namespace apex::torch_compat
