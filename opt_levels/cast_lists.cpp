#include "opt_levels/cast_lists.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

#include "opt_levels/detail/cast_reader.h"
#include "opt_levels/detail/presets.h"
#include "opt_levels/detail/yaml_map.h"
#include "opt_levels/embedded.h"

namespace apex::opt_levels::detail {
namespace {

using Policies = std::map<std::string, CastPolicy>;
using Kind = YamlEntry::Kind;

constexpr const char* kBase = "base";
constexpr const char* kExtensions = "extensions";
constexpr const char* kCasts = "casts";
constexpr const char* kMatch = "match";
constexpr const char* kWiden = "widen";  // in the built-in file only

const YamlForm& casts_form() {
  static const YamlForm form{{kBase, kExtensions, kCasts, kMatch}, {kExtensions, kCasts, kMatch}, "base: built_in"};
  return form;
}

const YamlForm& built_in_form() {
  static const YamlForm form{
      {kBase, kExtensions, kCasts, kMatch, kWiden}, {kExtensions, kCasts, kMatch, kWiden}, casts_form().example};
  return form;
}

const std::vector<CastPolicy>& cast_policies() {
  static const std::vector<CastPolicy> policies{
      CastPolicy::none,       CastPolicy::half,          CastPolicy::float32, CastPolicy::promote, CastPolicy::sequence,
      CastPolicy::match_self, CastPolicy::float_inplace, CastPolicy::banned,  CastPolicy::opaque,  CastPolicy::widen};
  return policies;
}

const std::vector<CastPolicy>& match_policies() {
  static const std::vector<CastPolicy> policies{CastPolicy::none,    CastPolicy::half,       CastPolicy::float32,
                                                CastPolicy::promote, CastPolicy::match_self, CastPolicy::follow_weights,
                                                CastPolicy::widen};
  return policies;
}

bool is_word(std::string_view text) {
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), [](unsigned char letter) { return std::isalnum(letter) || letter == '_'; });
}

// True for namespace::operator and namespace::operator.overload.
bool is_operator_name(std::string_view text) {
  const auto colons = text.find("::");
  if (colons == std::string_view::npos || !is_word(text.substr(0, colons))) return false;
  const auto name = text.substr(colons + 2);
  const auto dot = name.find('.');
  return is_word(name.substr(0, dot)) && (dot == std::string_view::npos || is_word(name.substr(dot + 1)));
}

CastPolicy policy_of(const YamlEntry& entry, const std::vector<CastPolicy>& allowed) {
  std::vector<std::string> names;
  for (const auto policy : allowed) names.emplace_back(policy_name(policy));
  check_key(entry, names);
  return allowed[static_cast<std::size_t>(std::find(names.begin(), names.end(), entry.key) - names.begin())];
}

class BlockReader {
 public:
  explicit BlockReader(const std::vector<CastPolicy>& allowed) : allowed_(allowed) {}

  Policies read(const YamlEntry& block) {
    if (block.is_none()) return {};
    check_kind(block, Kind::map, "a map of policies, each with a list of operators");
    for (const auto& entry : block.children) mistakes_.collect([&] { read_policy(entry); });
    mistakes_.check();
    return policies_;
  }
  Policies read_list(const YamlEntry& list, CastPolicy policy) {
    read_operators(list, policy);
    mistakes_.check();
    return policies_;
  }

 private:
  void read_policy(const YamlEntry& entry) {
    const CastPolicy policy = policy_of(entry, allowed_);
    if (!entry.is_none()) read_operators(entry, policy);
  }

  void read_operators(const YamlEntry& list, CastPolicy policy) {
    check_kind(list, Kind::list, "a list of operators");
    for (const auto& item : list.children) mistakes_.collect([&] { read_operator(item, policy); });
  }

  void read_operator(const YamlEntry& item, CastPolicy policy) {
    const std::string& name = item.value.text;
    if (item.kind != Kind::scalar || !is_operator_name(name)) {
      reject_entry(item, "an operator such as aten::linear or aten::add.Tensor");
    }
    const auto [first, is_new] = places_.emplace(name, item.value_place);
    TORCH_CHECK_VALUE(is_new, item.value_place, ": operator '", name, "' is listed twice, first at ", first->second,
                      ". Keep one of the two.");
    policies_.emplace(name, policy);
  }

  const std::vector<CastPolicy>& allowed_;
  Policies policies_;
  std::map<std::string, std::string> places_;
  Mistakes mistakes_;
};

// A name without overload also replaces the policies of its overloads.
void replace(const Policies& changes, Policies& policies) {
  for (const auto& [name, policy] : changes) {
    if (name.find('.') != std::string::npos) continue;
    const std::string prefix = name + ".";
    auto overload = policies.lower_bound(prefix);
    while (overload != policies.end() && overload->first.compare(0, prefix.size(), prefix) == 0) {
      overload = policies.erase(overload);
    }
  }
  for (const auto& [name, policy] : changes) policies[name] = policy;
}

bool starts_from_built_in(const YamlEntry& entry) {
  const std::string& base = entry.value.text;
  if (entry.kind != Kind::scalar || (base != "built_in" && base != "none")) reject_entry(entry, "built_in or none");
  return base == "built_in";
}

const YamlEntry* find(const std::vector<YamlEntry>& entries, const char* key) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const YamlEntry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

const CastLists& built_in_without_extensions() {
  static const CastLists lists = CastReader::read_built_in(std::string(embedded::casts), false);
  return lists;
}

CastLists base_of(const std::vector<YamlEntry>& entries) {
  const YamlEntry* base = find(entries, kBase);
  const YamlEntry* extensions = find(entries, kExtensions);
  const bool from_built_in = !base || starts_from_built_in(*base);
  bool with_extensions = true;
  if (extensions) {
    read_entry(*extensions, with_extensions);
    TORCH_CHECK_VALUE(from_built_in, extensions->key_place,
                      ": key 'extensions' extends the built-in lists, and 'base: none' starts without these lists. Leave out "
                      "one of the two.");
  }
  if (!from_built_in) return {};
  return with_extensions ? CastLists::built_in() : built_in_without_extensions();
}

}  // namespace

CastLists CastReader::read_built_in(const std::string& text, bool with_extensions) {
  CastLists lists;
  for (const auto& entry : read_yaml_map(text, "<casts>", built_in_form())) {
    if (entry.key == kCasts) replace(BlockReader(cast_policies()).read(entry), lists.casts_);
    if (entry.key == kExtensions && with_extensions) replace(BlockReader(cast_policies()).read(entry), lists.casts_);
    if (entry.key == kMatch) replace(BlockReader(match_policies()).read(entry), lists.match_);
    if (entry.key != kWiden) continue;
    const Policies widened = BlockReader(match_policies()).read_list(entry, CastPolicy::widen);
    if (with_extensions) replace(widened, lists.casts_);
    replace(widened, lists.match_);
  }
  return lists;
}

CastLists CastReader::read(const std::string& text, const std::string& source) {
  return read(read_yaml_map(text, source, casts_form()));
}

CastLists CastReader::read(const std::vector<YamlEntry>& entries) {
  for (const auto& entry : entries) check_key(entry, casts_form().keys);
  CastLists lists = base_of(entries);
  if (const auto* casts = find(entries, kCasts)) replace(BlockReader(cast_policies()).read(*casts), lists.casts_);
  if (const auto* match = find(entries, kMatch)) replace(BlockReader(match_policies()).read(*match), lists.match_);
  return lists;
}

}  // namespace apex::opt_levels::detail

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
