#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/lr_scheduler/detail/numbers.h>

#include <c10/util/Exception.h>

namespace apex::lr_scheduler::detail {
namespace {

std::string name_of(const std::string& name, size_t group) { return name + "_" + std::to_string(group); }

}  // namespace

double entry(const LRScheduler::StateDict& state, const std::string& name) {
  const double* value = state.find(name);
  TORCH_CHECK(value, "LRScheduler::load_state_dict: the state has no '", name,
              "'. Give what state_dict() of a scheduler that was made in the same way returned.");
  return *value;
}

void write_groups(LRScheduler::StateDict& state, const std::string& name, const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) state.insert(name_of(name, i), values[i]);
}

std::vector<double> read_groups(const LRScheduler::StateDict& state, const std::string& name, size_t groups) {
  std::vector<double> values;
  for (size_t i = 0; i < groups; ++i) values.push_back(entry(state, name_of(name, i)));
  TORCH_CHECK_VALUE(!state.contains(name_of(name, groups)), "LRScheduler::load_state_dict: the state has '",
                    name_of(name, groups), "', but the optimizer has ", groups,
                    " parameter groups. Load it into a scheduler of an optimizer with the saved one's groups.");
  return values;
}

const torch::optim::OptimizerOptions& options_in_use(const torch::optim::OptimizerOptions& options) {
  const auto* original = dynamic_cast<const amp::detail::OriginalOptions*>(&options);
  const auto* target = original ? original->target() : nullptr;
  return target ? options_in_use(*target) : options;
}

void write_options(torch::optim::OptimizerOptions& options, const std::function<void(torch::optim::OptimizerOptions&)>& write) {
  auto* original = dynamic_cast<amp::detail::OriginalOptions*>(&options);
  const auto* target = original ? original->target() : nullptr;
  if (!target) return write(options);
  original->sync_with_handle();  // what the program has written there
  write_options(const_cast<torch::optim::OptimizerOptions&>(*target), write);
  original->sync_with_handle();
}

}  // namespace apex::lr_scheduler::detail
