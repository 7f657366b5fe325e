#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/session/session.h>

#include <vector>

namespace apex::amp::detail {

/// Looks at the first steps of an optimizer class of the program's own. One that steps an inner optimizer, or a list of
/// parameters, writes into the model's 16-bit weights, and the masters, which have not moved, are then copied over them.
///
/// Some writes leave no version, so that values are compared, which synchronises: until masters have moved a weight, and
/// never while a CUDA graph is captured.
class OwnSteps {
 public:
  explicit OwnSteps(bool is_own_class) : is_over_(!is_own_class) {}

  /// A step begins. The weights are the rounded masters.
  void begin(MasterTable::Params with_masters);
  /// The step has run. Errors: RuntimeError naming a weight that it has written and whose master it has not; all weights are
  /// then what they were.
  void check(const Session& session) const;
  /// The masters have been copied to the weights.
  void end();

 private:
  struct Weight {
    at::Tensor param, master, before;
  };

  bool is_over_;
  std::vector<Weight> weights_;
};

}  // namespace apex::amp::detail
