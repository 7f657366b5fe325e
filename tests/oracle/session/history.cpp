#include "tests/oracle/session/history.h"

namespace oracle {
namespace {

std::optional<double> scale_used(const Json& event) {
  const Json* expect = event.find("expect");
  const Json* scale = expect ? expect->find("scale_used") : nullptr;
  return scale ? std::optional(scale->as_double()) : std::nullopt;
}

}  // namespace

std::optional<double> History::scale_of_last_pass(const std::string& optimizer) const {
  const auto found = scales_.find(optimizer);
  return found == scales_.end() ? std::nullopt : std::optional(found->second);
}

void History::add(const Json& event) {
  const std::string op = event.at("op").as_string();
  if (op == "zero_grad") unzeroed_.erase(event.at("optimizer").as_string());
  if (op == "step") scales_.erase(event.at("optimizer").as_string());
  if (op == "rebuild") {
    unzeroed_.clear();
    scales_.clear();
  }
  if (op == "backward") {
    for (const Json& optimizer : event.at("optimizers").items()) {
      unzeroed_.insert(optimizer.as_string());
      if (const auto scale = scale_used(event)) scales_[optimizer.as_string()] = *scale;
    }
  }
  if (op == "backward" || op == "rebuild") evaluated_ = changed_since_evaluation_ = false;
  if (op == "forward" && event.bool_or("no_grad", false)) evaluated_ = true;
  if (op == "load" || op == "step") changed_since_evaluation_ |= evaluated_;
}

}  // namespace oracle
