#include <apex_cpp/amp/doctor/run_record.h>

#include <algorithm>
#include <cmath>

namespace apex::amp::detail {
namespace {

// Steps in a row that overflow before a run is given up: a dynamic scale has fallen to 2^-4 by then.
constexpr int64_t kPatience = 20;

}  // namespace

bool RunRecord::is_lost() const {
  if (!losses.empty() && !std::isfinite(losses.back())) return true;
  const auto last = std::find(skipped.rbegin(), skipped.rend(), false);
  return last - skipped.rbegin() >= kPatience;
}

std::string RunRecord::how_it_was_lost() const {
  if (std::isfinite(losses.back())) return std::to_string(kPatience) + " steps in a row overflowed";
  return std::isnan(losses.back()) ? "the loss is nan" : "the loss is infinite";
}

}  // namespace apex::amp::detail
