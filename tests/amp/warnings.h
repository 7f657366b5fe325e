#pragma once
// Warnings of torch, kept instead of printed while this lives.
#include <c10/util/Exception.h>

#include <string>

namespace apex::test {

class CaughtWarnings : public c10::WarningHandler {
 public:
  CaughtWarnings() : guard_(this), always_before_(c10::WarningUtils::get_warnAlways()) {
    c10::WarningUtils::set_warnAlways(true);  // TORCH_WARN_ONCE every time
  }
  ~CaughtWarnings() override { c10::WarningUtils::set_warnAlways(always_before_); }
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }

  std::string text;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
  bool always_before_;
};

}  // namespace apex::test
