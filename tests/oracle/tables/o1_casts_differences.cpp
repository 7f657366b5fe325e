// Rows of the O1 cast table from which the library intentionally differs: entries "casts" and "modules" of the repair file. The
// expected results are checked in the same way.
#include <map>
#include <stdexcept>

#include "tests/oracle/tables/o1_casts_calls.h"

namespace oracle {

CastDifference difference_of(const std::string& call, Report& report) {
  using Receives = CastDifference::Receives;
  static const std::map<std::string, CastDifference> kDifferences = {{"what is passed", {Receives::what_is_passed}},
                                                                     {"float32", {Receives::float32}},
                                                                     {"promoted", {Receives::promoted}},
                                                                     {"the type of self", {Receives::self_type}},
                                                                     {"no such call", {Receives::as_recorded, true}}};
  const Repair* repair = report.repairs().find("casts", {{"call", call}});
  if (!repair) return {};
  report.repaired(*repair);
  const auto found = kDifferences.find(repair->expect.as_string());
  if (found == kDifferences.end()) throw std::runtime_error(repair->expect.where() + ": not known");
  return found->second;
}

std::vector<std::string> module_difference(const std::string& module, const std::string& input, Report& report) {
  const Repair* repair = report.repairs().find("modules", {{"module", module}, {"input", input}});
  if (!repair) return {};
  report.repaired(*repair);
  std::vector<std::string> types;
  for (const Json& type : repair->expect.items()) types.push_back(type.as_string());
  return types;
}

}  // namespace oracle
