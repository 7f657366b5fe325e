#include "tests/state_machine/state.h"

#include <cmath>
#include <sstream>

namespace apex::test {
namespace {

class Comparison {
 public:
  template <class T>
  void check(const std::string& what, const T& expected, const T& actual) {
    if (!text_.empty() || same(expected, actual)) return;
    std::ostringstream text;
    text.precision(10);
    text << what << ": expected " << expected << ", is " << actual;
    text_ = text.str();
  }

  void check(const std::string& what, const Values& expected, const Values& actual) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!same(expected[i], actual[i])) check(what + "[" + std::to_string(i) + "]", expected[i], actual[i]);
    }
  }

  void check(const std::string& what, const Gradient& expected, const Gradient& actual) {
    if (expected.defined != actual.defined) check(what + " defined", expected.defined, actual.defined);
    if (expected.defined) check(what, expected.values, actual.values);
  }

  void check(const std::string& what, const Weight& expected, const Weight& actual) {
    check(what, expected.values, actual.values);
    check(what + ".grad", expected.grad, actual.grad);
  }

  void check(const std::string& what, const ScalerState& expected, const ScalerState& actual) {
    check(what + " scale", expected.scale, actual.scale);
    check(what + " unskipped", expected.unskipped, actual.unskipped);
    check(what + " updates", expected.updates, actual.updates);
    check(what + " skipped in a row", expected.skipped_in_a_row, actual.skipped_in_a_row);
    check(what + " length of history", expected.history.size(), actual.history.size());
    for (size_t i = 0; i < std::min(expected.history.size(), actual.history.size()); ++i) {
      check(what + " update of event", expected.history[i].update, actual.history[i].update);
      check(what + " scale before event", expected.history[i].before, actual.history[i].before);
      check(what + " scale after event", expected.history[i].after, actual.history[i].after);
      check(what + " event", expected.history[i].change, actual.history[i].change);
    }
  }

  void check(const std::string& what, const StepState& expected, const StepState& actual) {
    check(what + " skipped", expected.skipped, actual.skipped);
    check(what + " loss_scale", expected.loss_scale, actual.loss_scale);
    check(what + " loss_id", expected.loss_id, actual.loss_id);
    check(what + " scale before", expected.scale_before, actual.scale_before);
    check(what + " scale after", expected.scale_after, actual.scale_after);
    check(what + " names a gradient", expected.names_gradient, actual.names_gradient);
  }

  template <class Range>
  void check_all(const char* what, const Range& expected, const Range& actual) {
    for (size_t i = 0; i < expected.size() && text_.empty(); ++i) check(what + std::to_string(i), expected[i], actual[i]);
  }

  const std::string& text() const { return text_; }

 private:
  template <class T>
  static bool same(const T& a, const T& b) {
    return a == b;
  }
  static bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

  std::string text_;
};

}  // namespace

std::string difference(const State& expected, const State& actual) {
  Comparison comparison;
  comparison.check("an error", expected.threw, actual.threw);
  comparison.check_all("loss scaler ", expected.scalers, actual.scalers);
  comparison.check_all("step of optimizer ", expected.steps, actual.steps);
  comparison.check_all("parameter ", expected.params, actual.params);
  comparison.check_all("has master ", expected.has_master, actual.has_master);
  comparison.check_all("master ", expected.masters, actual.masters);
  comparison.check_all("momentum ", expected.momentum, actual.momentum);
  return comparison.text();
}

}  // namespace apex::test
