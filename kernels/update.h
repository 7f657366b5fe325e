#pragma once

#include <vector>

#include "kernels/optimizers.h"
#include "kernels/plan/reuse.h"

namespace apex::kernels {

// Autograd finds out by version counters that a tensor it saved was written to. Drivers that write through pointers do not
// move them.
void bump_versions(at::TensorList written);

// The lists of one optimizer update: checked and grouped when constructed, so that nothing is changed if a check fails.
class Update {
 public:
  // `model_params` is the last list, left out if it is empty.
  Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepControl& control);

  // Whether control.found_inf says that nothing may be changed.
  bool stopped() const { return stopped_; }

  bool copies() const { return copies_; }
  size_t count() const { return lists_.front().tensors.size(); }

  // run(group) for each group, unless stopped.
  template <class Run>
  void run(const Run& run_group) const {
    if (stopped_) return;
    for (const plan::Group& group : *groups_) run_group(group);
    for (const plan::TensorList& list : lists_) {
      if (list.access == plan::Access::write) bump_versions(list.tensors);
    }
  }

 private:
  void check_dtypes(const char* op) const;
  void check_devices(const char* op) const;

  std::vector<plan::TensorList> lists_;
  plan::Groups groups_;
  bool copies_;
  bool stopped_;
};

// Throws c10::ValueError unless control.step is a step's number.
void check_step(const char* op, const MomentControl& control);

}  // namespace apex::kernels
