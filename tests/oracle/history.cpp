#include "tests/oracle/history.h"

namespace oracle {

void History::add(const Json& event) {
  const std::string op = event.at("op").as_string();
  if (op == "zero_grad") unzeroed_.erase(event.at("optimizer").as_string());
  if (op == "rebuild") unzeroed_.clear();
  if (op == "backward") {
    for (const Json& optimizer : event.at("optimizers").items()) unzeroed_.insert(optimizer.as_string());
  }
  if (op == "backward" || op == "rebuild") evaluated_ = changed_since_evaluation_ = false;
  if (op == "forward" && event.bool_or("no_grad", false)) evaluated_ = true;
  if (op == "load" || op == "step") changed_since_evaluation_ |= evaluated_;
}

}  // namespace oracle
