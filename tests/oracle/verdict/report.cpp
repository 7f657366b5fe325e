#include "tests/oracle/verdict/report.h"

#include <cstdio>
#include <iostream>

namespace oracle {
namespace {

// Only the first line of a message: exceptions of LibTorch carry a stack trace behind it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

template <class Names>
std::string joined(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

}  // namespace

std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void Report::begin(const std::string& item, const std::string& group) {
  item_ = item;
  group_ = group;
  place_.clear();
  ignores_values_ = false;
  failures_here_ = 0;
}

void Report::fail(const std::string& what, const std::string& expected, const std::string& got) {
  ++failures_here_;
  std::cout << "FAIL " << item_ << (place_.empty() ? "" : ", " + place_) << ": " << what << ": expected " << expected
            << ", got " << first_line(got) << std::endl;
}

void Report::check(bool ok, const std::string& what, const std::string& expected, const std::string& got) {
  if (!ok) fail(what, expected, got);
}

void Report::deviation(double absolute, bool exact) {
  Deviations& d = deviations_[group_];
  ++d.compared;
  d.exact += exact;
  if (absolute > d.worst) {
    d.worst = absolute;
    d.worst_item = item_ + (place_.empty() ? "" : ", " + place_);
  }
}

void Report::leave_out(const std::string& reason) { left_out_[reason].insert(item_); }

void Report::end() { ++(failures_here_ ? failed_ : passed_); }

// Failing checks from before still make the item a failure.
void Report::skip(const std::string& item, const std::string& reason) {
  if (failures_here_) return end();
  ++skipped_;
  skips_[reason].push_back(item);
}

int Report::summary(bool expect_all_repairs, bool expect_all_checks) const {
  for (const auto& [group, d] : deviations_) {
    std::cout << "compared " << group << ": " << d.compared << " tensors and numbers, " << d.exact
              << " bit-exact, largest difference " << number_text(d.worst)
              << (d.worst_item.empty() ? "" : " (" + d.worst_item + ")") << "\n";
  }
  for (const auto& [reason, items] : left_out_) {
    std::cout << "not compared, " << reason << " (" << items.size() << "): " << joined(items) << "\n";
  }
  for (const auto& [repair, items] : repaired_) {
    std::cout << "repaired, " << repair->item << ", " << repair->reason << " (" << items.size() << "): " << joined(items)
              << "\n";
  }
  const auto unused = expect_all_repairs ? repairs_.unused() : std::vector<const Repair*>();
  const bool lacks_checks = expect_all_checks && !left_out_.empty();
  if (lacks_checks) std::cout << "FAIL: not all was compared, see above\n";
  for (const Repair* repair : unused) std::cout << "FAIL repairs: " << repair->text() << " matches nothing\n";
  for (const auto& [reason, items] : skips_) {
    std::cout << "skipped, " << reason << " (" << items.size() << "): " << joined(items) << "\n";
  }
  std::cout << passed_ << " passed, " << failed_ << " failed, " << skipped_ << " skipped" << std::endl;
  return failed_ || skipped_ || lacks_checks || !unused.empty() ? 1 : 0;
}

}  // namespace oracle
