#include "opt_levels/cast_lists.h"

#include <array>
#include <vector>

#include "opt_levels/detail/cast_reader.h"
#include "opt_levels/detail/presets.h"
#include "opt_levels/detail/yaml_map.h"
#include "opt_levels/embedded.h"

namespace apex::opt_levels {
namespace {

std::string block_text(const char* name, const std::map<std::string, CastPolicy>& policies) {
  std::map<CastPolicy, std::vector<std::string>> operators;
  for (const auto& [op, policy] : policies) operators[policy].push_back(op);
  std::string text;
  for (const auto& [policy, names] : operators) text += detail::write_yaml_list(std::string(policy_name(policy)), names);
  return text.empty() ? "" : std::string(name) + ":\n" + detail::indented(text);
}

}  // namespace

const CastLists& CastLists::built_in() {
  static const CastLists lists = detail::CastReader::read_built_in(std::string(embedded::casts), true);
  return lists;
}

CastLists CastLists::from_yaml_file(const std::string& path) {
  return detail::CastReader::read(detail::read_file(path, "cast lists file"), path);
}

CastLists CastLists::from_yaml_string(const std::string& text, const std::string& source_name) {
  return detail::CastReader::read(text, source_name);
}

std::string CastLists::to_yaml() const { return "base: none\n" + block_text("casts", casts_) + block_text("match", match_); }

std::string_view policy_name(CastPolicy policy) {
  constexpr std::array<std::string_view, 11> kNames{"none",     "half",       "float32",       "promote",
                                                    "sequence", "match_self", "float_inplace", "banned",
                                                    "opaque",   "widen",      "follow_weights"};
  return kNames.at(static_cast<std::size_t>(policy));
}

}  // namespace apex::opt_levels
