#pragma once

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/oracle/verdict/repairs.h"

namespace oracle {

// Thrown while an item is prepared or played: the library, or this replayer, lacks something that the item is about. The item
// counts as skipped, under this reason.
class NeedsFeature : public std::runtime_error {
 public:
  explicit NeedsFeature(const std::string& feature) : std::runtime_error("needs " + feature) {}
};

// Gathers outcomes and prints: one line per failing check, at the end deviations, skips by reason and the totals.
class Report {
 public:
  explicit Report(Repairs repairs = Repairs::standard()) : repairs_(std::move(repairs)) {}

  const Repairs& repairs() const { return repairs_; }
  // The item was held to what a repair says instead of what was recorded.
  void repaired(const Repair& repair) { repaired_[&repair].insert(item_); }
  // From here on, until the end of the item, values are not compared that have a tolerance. What is exact still is.
  void ignore_values() { ignores_values_ = true; }
  bool ignores_values() const { return ignores_values_; }

  // Names what is being played; every check until `end` belongs to it. `group` is what deviations are summed up by.
  void begin(const std::string& item, const std::string& group);
  // The event (or call, or row) that the next checks belong to, e.g. "event 4 (backward)".
  void at(const std::string& place) { place_ = place; }

  void fail(const std::string& what, const std::string& expected, const std::string& got);
  void check(bool ok, const std::string& what, const std::string& expected, const std::string& got);
  // A compared tensor or number: how far off it was, as a part of what is allowed.
  void deviation(double absolute, bool exact);
  // A check of the item that could not be made, and why; the rest counts.
  void leave_out(const std::string& reason);

  void end();
  void skip(const std::string& item, const std::string& reason);

  // Prints the summary, ending in "N passed, N failed, N skipped". Returns the exit status: 0 if all was played and passed.
  // `expect_all_repairs`: a repair that matched nothing is a failure. `expect_all_checks`: so is a check that was left out.
  int summary(bool expect_all_repairs = false, bool expect_all_checks = false) const;

  int passed() const { return passed_; }
  int failed() const { return failed_; }
  int skipped() const { return skipped_; }

 private:
  struct Deviations {
    double worst = 0;
    long compared = 0;
    long exact = 0;
    std::string worst_item;
  };

  std::string item_, group_, place_;
  int passed_ = 0, failed_ = 0, skipped_ = 0;
  int failures_here_ = 0;
  std::map<std::string, Deviations> deviations_;
  std::map<std::string, std::vector<std::string>> skips_;
  std::map<std::string, std::set<std::string>> left_out_;
  Repairs repairs_;
  std::map<const Repair*, std::set<std::string>> repaired_;
  bool ignores_values_ = false;
};

// Plays `body` as one item of the report: NeedsFeature makes it a skip, any other exception a failure.
template <class Body>
void play(Report& report, const std::string& item, const std::string& group, Body body) {
  report.begin(item, group);
  try {
    body();
  } catch (const NeedsFeature& needed) {
    report.skip(item, needed.what());
    return;
  } catch (const std::exception& error) {
    report.fail("no exception", "none", error.what());
  }
  report.end();
}

std::string number_text(double value);

}  // namespace oracle
