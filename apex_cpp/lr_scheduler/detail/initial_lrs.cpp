#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/lr_scheduler/detail/initial_lrs.h>

#include <map>
#include <mutex>

namespace apex::lr_scheduler::detail {
namespace {

// The options that the steps of a group read. They stay one object when a handle or LARC takes the optimizer's groups.
const torch::optim::OptimizerOptions* options_in_use(const torch::optim::OptimizerParamGroup& group) {
  const torch::optim::OptimizerOptions* options = &group.options();
  while (const auto* original = dynamic_cast<const amp::detail::OriginalOptions*>(options)) {
    const auto* target = original->target();
    if (!target) break;
    options = target;
  }
  return options;
}

}  // namespace

std::vector<double> current_lrs(torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

InitialLrs initial_lrs_of(torch::optim::Optimizer& optimizer) {
  static std::mutex mutex;
  static std::map<const void*, std::weak_ptr<double>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto each = known.begin(); each != known.end();) each = each->second.expired() ? known.erase(each) : std::next(each);
  InitialLrs lrs;
  for (const auto& group : optimizer.param_groups()) {
    std::weak_ptr<double>& place = known[options_in_use(group)];
    lrs.push_back(place.lock());
    if (!lrs.back()) place = lrs.back() = std::make_shared<double>(group.options().get_lr());
  }
  return lrs;
}

std::vector<double> values_of(const InitialLrs& lrs) {
  std::vector<double> values;
  for (const auto& lr : lrs) values.push_back(*lr);
  return values;
}

}  // namespace apex::lr_scheduler::detail
