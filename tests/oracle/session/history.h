#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "tests/oracle/reading/json.h"

namespace oracle {

// The events of a case so far, as far as features of the repair file depend on them.
class History {
 public:
  void add(const Json& event);

  // A backward pass for this optimizer came since its last zero_grad, so that another one accumulates.
  bool accumulates(const std::string& optimizer) const { return unzeroed_.count(optimizer) > 0; }
  // The loss scale of the optimizer's last backward pass, if it was not stepped since.
  std::optional<double> scale_of_last_pass(const std::string& optimizer) const;
  // Weights changed since an evaluation without gradients, and no backward pass ran since.
  bool changed_since_evaluation() const { return changed_since_evaluation_; }

 private:
  std::set<std::string> unzeroed_;
  std::map<std::string, double> scales_;
  bool evaluated_ = false;
  bool changed_since_evaluation_ = false;
};

}  // namespace oracle
