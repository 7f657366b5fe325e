#include <apex_cpp/lr_scheduler/detail/initial_lrs.h>

#include <map>
#include <mutex>

namespace apex::lr_scheduler::detail {

std::vector<double> current_lrs(torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

std::shared_ptr<InitialLrs> initial_lrs_of(torch::optim::Optimizer& optimizer) {
  static std::mutex mutex;
  static std::map<const torch::optim::Optimizer*, std::weak_ptr<InitialLrs>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto each = known.begin(); each != known.end();) each = each->second.expired() ? known.erase(each) : std::next(each);
  auto initial = known[&optimizer].lock();
  if (!initial) initial = std::make_shared<InitialLrs>();
  known[&optimizer] = initial;
  const auto current = current_lrs(optimizer);
  for (size_t i = initial->lrs.size(); i < current.size(); ++i) initial->lrs.push_back(current[i]);
  return initial;
}

}  // namespace apex::lr_scheduler::detail
