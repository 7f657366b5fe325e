#include <apex_cpp/lr_scheduler/combined.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace apex::lr_scheduler {
namespace {

std::string prefix_of(const std::string& prefix, size_t scheduler) {
  return prefix + "schedulers_" + std::to_string(scheduler) + "_";
}

void check_schedulers(const char* owner, const Schedulers& schedulers, const torch::optim::Optimizer* optimizer) {
  TORCH_CHECK_VALUE(!schedulers.empty(), owner, ": the list of schedulers is empty. Give at least one.");
  for (size_t i = 0; i < schedulers.size(); ++i) {
    TORCH_CHECK_VALUE(schedulers[i], owner, ": scheduler ", i, " is a null pointer. Make it with std::make_shared.");
    if (!optimizer) optimizer = &schedulers[i]->optimizer();
    TORCH_CHECK_VALUE(&schedulers[i]->optimizer() == optimizer, owner, ": scheduler ", i,
                      " belongs to another optimizer. Make all of them for one optimizer: after amp::initialize, for the "
                      "handle that it returned.");
  }
}

const Schedulers& checked(const char* owner, const Schedulers& schedulers) {
  check_schedulers(owner, schedulers, nullptr);
  return schedulers;
}

void check_milestones(const std::vector<int64_t>& milestones, size_t schedulers) {
  TORCH_CHECK_VALUE(milestones.size() + 1 == schedulers, "SequentialLR: ", schedulers, " schedulers have ", milestones.size(),
                    " milestones. Give one milestone fewer than schedulers: where the second begins, where the third begins, "
                    "and so on.");
  int64_t before = 0;
  for (const int64_t milestone : milestones) {
    TORCH_CHECK_VALUE(milestone >= before, "SequentialLR: the milestone ", milestone, " comes after ", before,
                      ". Give milestones that are not negative, in ascending order.");
    before = milestone;
  }
}

}  // namespace

CombinedScheduler::CombinedScheduler(torch::optim::Optimizer& optimizer, Schedulers schedulers)
    : LRScheduler(optimizer), schedulers_(std::move(schedulers)) {}

void CombinedScheduler::write_state(StateDict& state, const std::string& prefix) const {
  LRScheduler::write_state(state, prefix);
  for (size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i]->write_state(state, prefix_of(prefix, i));
}

void CombinedScheduler::check_state(const StateDict& state, const std::string& prefix) const {
  LRScheduler::check_state(state, prefix);
  for (size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i]->check_state(state, prefix_of(prefix, i));
}

void CombinedScheduler::read_state(const StateDict& state, const std::string& prefix) {
  LRScheduler::read_state(state, prefix);
  for (size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i]->read_state(state, prefix_of(prefix, i));
}

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, Schedulers schedulers, std::vector<int64_t> milestones)
    : CombinedScheduler(optimizer, std::move(schedulers)), milestones_(std::move(milestones)) {
  check_schedulers("SequentialLR", schedulers_, &optimizer);
  check_milestones(milestones_, schedulers_.size());
  for (size_t i = 0; i < schedulers_.size(); ++i) {
    TORCH_CHECK_VALUE(!dynamic_cast<CombinedScheduler*>(schedulers_[i].get()), "SequentialLR: scheduler ", i,
                      " is itself made of schedulers and has no first rate to begin with. Put the schedulers of a SequentialLR "
                      "into this list, and a SequentialLR into a ChainedScheduler.");
  }
  set_optimizer_lrs(base_lrs());
  for (const auto& scheduler : schedulers_) undo(*scheduler);
  step();
}

/// The scheduler at `epoch()`.
size_t SequentialLR::active() const {
  return static_cast<size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), epoch()) - milestones_.begin());
}

bool SequentialLR::begins(size_t scheduler) const {
  return epoch() > 0 && scheduler > 0 && milestones_[scheduler - 1] == epoch();
}

void SequentialLR::check_step() const {
  if (!begins(active())) check_step_of(*schedulers_[active()]);
}

std::vector<double> SequentialLR::get_lr() {
  LRScheduler& scheduler = *schedulers_[active()];
  begins(active()) ? restart(scheduler) : scheduler.step();
  return scheduler.get_last_lr();
}

ChainedScheduler::ChainedScheduler(Schedulers schedulers)
    : CombinedScheduler(checked("ChainedScheduler", schedulers).front()->optimizer(), schedulers) {
  step_count_ = 1;  // the schedulers have set their first rates
}

void ChainedScheduler::check_step() const {
  for (const auto& scheduler : schedulers_) check_step_of(*scheduler);
}

std::vector<double> ChainedScheduler::get_lr() {
  for (const auto& scheduler : schedulers_) scheduler->step();
  return get_current_lrs();
}

}  // namespace apex::lr_scheduler
