#include <apex_cpp/lr_scheduler/detail/numbers.h>
#include <apex_cpp/lr_scheduler/scheduler.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <map>
#include <mutex>
#include <utility>

// LibTorch's base class, as it differs from Python's:
// - Its constructor sets no rates. Each constructor here ends with `step()`, which raises step_count_ to 1: from then on
//   `last_epoch` is step_count_ - 1, and within `get_lr` it is step_count_. In a constructor a virtual call reaches the class
//   that is being made, so the call cannot stand in the base class.
// - `step` is not virtual. It calls `get_lrs`, sets what this returns, and counts. Schedulers of schedulers therefore step
//   theirs in `get_lr`, and what goes beyond rates (OneCycleLR's momentum) is set there, too.
// - The optimizer and the setter of rates are private to it, and options have no place for Python's `initial_lr`.
namespace apex::lr_scheduler {
namespace {

constexpr double kMostSteps = 4294967295;  // of step_count_

using InitialLrs = std::vector<std::shared_ptr<double>>;

std::vector<double> current_lrs(torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

// The rate of each group from before its first scheduler: Python's `initial_lr`, for which options in LibTorch have no place.
// All schedulers of a group share one, also those of an optimizer and of the handle that has replaced it. It is the current
// rate of a group that no living scheduler has, and lives as long as any scheduler holds it. Callable from any thread.
InitialLrs initial_lrs_of(torch::optim::Optimizer& optimizer) {
  static std::mutex mutex;
  static std::map<const void*, std::weak_ptr<double>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto each = known.begin(); each != known.end();) each = each->second.expired() ? known.erase(each) : std::next(each);
  InitialLrs lrs;
  for (const auto& group : optimizer.param_groups()) {
    std::weak_ptr<double>& place = known[&detail::options_in_use(group.options())];
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

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer)
    : torch::optim::LRScheduler(optimizer),
      scheduled_(optimizer),
      initial_lrs_(initial_lrs_of(optimizer)),
      base_lrs_(values_of(initial_lrs_)),
      last_lrs_(current_lrs(optimizer)) {}

std::vector<double> LRScheduler::get_lrs() {
  check_step();
  last_lrs_ = get_lr();
  return last_lrs_;
}

const std::vector<double>& LRScheduler::base_lrs() const {
  const auto groups = scheduled_.param_groups().size();
  TORCH_CHECK_VALUE(base_lrs_.size() == groups, "a learning-rate scheduler was made for ", base_lrs_.size(),
                    " parameter groups, but the optimizer has ", groups,
                    " now. Make the scheduler after the last add_param_group.");
  return base_lrs_;
}

std::vector<double> LRScheduler::scaled_lrs(double factor) const {
  auto lrs = get_current_lrs();
  for (double& lr : lrs) lr *= factor;
  return lrs;
}

void LRScheduler::set_base_lrs(std::vector<double> lrs) {
  set_initial_lrs(lrs);
  base_lrs_ = std::move(lrs);
}

void LRScheduler::set_initial_lrs(const std::vector<double>& lrs) {
  initial_lrs_ = initial_lrs_of(scheduled_);
  for (size_t i = 0; i < lrs.size(); ++i) *initial_lrs_.at(i) = lrs[i];
}

void LRScheduler::set_optimizer_lrs(const std::vector<double>& lrs) {
  auto& groups = scheduled_.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(lrs[i]);
}

// Python: _update_lr(0), with the closed form where there is one.
void LRScheduler::restart() {
  step_count_ = 0;
  last_lrs_ = first_lr();
  set_optimizer_lrs(last_lrs_);
  step_count_ = 1;
}

LRScheduler::StateDict LRScheduler::state_dict() const {
  StateDict state;
  write_state(state, "");
  return state;
}

void LRScheduler::load_state_dict(const StateDict& state) {
  check_state(state, "");
  read_state(state, "");
}

// Groups that were added since the scheduler was made have the rates that a scheduler made now would give them.
void LRScheduler::write_state(StateDict& state, const std::string& prefix) const {
  const auto initial = values_of(initial_lrs_of(scheduled_)), now = get_current_lrs();
  const auto completed = [](std::vector<double> lrs, const std::vector<double>& of_all) {
    if (lrs.size() < of_all.size()) lrs.insert(lrs.end(), of_all.begin() + static_cast<int64_t>(lrs.size()), of_all.end());
    return lrs;
  };
  state.insert(prefix + "last_epoch", static_cast<double>(last_epoch()));
  detail::write_groups(state, prefix + "base_lr", completed(base_lrs_, initial));
  detail::write_groups(state, prefix + "initial_lr", initial);
  detail::write_groups(state, prefix + "last_lr", completed(last_lrs_, now));
  detail::write_groups(state, prefix + "lr", now);
}

void LRScheduler::check_state(const StateDict& state, const std::string& prefix) const {
  const double epoch = detail::entry(state, prefix + "last_epoch");
  TORCH_CHECK_VALUE(epoch >= -1 && epoch < kMostSteps && epoch == std::floor(epoch), "LRScheduler::load_state_dict: '", prefix,
                    "last_epoch' is ", epoch, ", which is no number of steps. Give what state_dict() returned.");
  const auto groups = scheduled_.param_groups().size();
  for (const char* name : {"base_lr", "initial_lr", "last_lr", "lr"}) detail::read_groups(state, prefix + name, groups);
}

void LRScheduler::read_state(const StateDict& state, const std::string& prefix) {
  const auto groups = scheduled_.param_groups().size();
  const auto read = [&](const char* name) { return detail::read_groups(state, prefix + name, groups); };
  step_count_ = static_cast<unsigned>(detail::entry(state, prefix + "last_epoch") + 1);
  base_lrs_ = read("base_lr");
  set_initial_lrs(read("initial_lr"));
  last_lrs_ = read("last_lr");
  set_optimizer_lrs(read("lr"));
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const LRScheduler& scheduler) {
  for (const auto& item : scheduler.state_dict()) archive.write(item.key(), c10::IValue(item.value()));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, LRScheduler& scheduler) {
  LRScheduler::StateDict state;
  for (const auto& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    TORCH_CHECK(value.isDouble(), "The archive's entry '", key,
                "' is not the state of a learning-rate scheduler. Load a file that torch::save wrote for one.");
    state.insert(key, value.toDouble());
  }
  scheduler.load_state_dict(state);
  return archive;
}

}  // namespace apex::lr_scheduler
