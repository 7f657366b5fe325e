#include "tests/oracle/verdict/repairs.h"

#include <fnmatch.h>

#include <algorithm>
#include <stdexcept>

namespace oracle {
namespace {

Repair read_entry(const Json& entry) {
  Repair repair;
  for (const auto& [name, value] : entry.at("when").members()) repair.when[name] = value.text();
  if (repair.when.empty()) throw std::runtime_error(entry.where() + ": a repair that matches everything");
  repair.expect = entry.at("expect");
  repair.item = entry.at("item").as_string();
  repair.reason = entry.at("reason").as_string();
  if (repair.item.empty() || repair.reason.empty()) throw std::runtime_error(entry.where() + ": a repair without a reason");
  repair.unseen = entry.bool_or("unseen", false);
  return repair;
}

bool matches(const Repair& repair, const Features& features) {
  return std::all_of(repair.when.begin(), repair.when.end(), [&](const auto& wanted) {
    const auto found = features.find(wanted.first);
    return found != features.end() && fnmatch(wanted.second.c_str(), found->second.c_str(), 0) == 0;
  });
}

template <class Entries>
auto matching_in(const Entries& entries, const std::string& kind, const Features& features) {
  std::vector<const Repair*> found;
  const auto of_kind = entries.find(kind);
  if (of_kind == entries.end()) return found;
  for (const Repair& repair : of_kind->second) {
    if (!matches(repair, features)) continue;
    repair.used = true;
    found.push_back(&repair);
  }
  return found;
}

}  // namespace

std::string Repair::text() const {
  std::string places;
  for (const auto& [name, value] : when) places += (places.empty() ? "" : ", ") + name + " " + value;
  return item + " (" + places + ")";
}

Repairs Repairs::read(const Json& json) {
  Repairs repairs;
  for (const auto& [kind, entries] : json.members()) {
    for (const Json& entry : entries.items()) repairs.entries_[kind].push_back(read_entry(entry));
  }
  return repairs;
}

Repairs Repairs::parse(const std::string& text, const std::string& source) { return read(Json::parse(text, source)); }

Repairs Repairs::from_file(const std::filesystem::path& path) { return read(Json::parse_file(path)); }

Repairs Repairs::standard() { return from_file(ORACLE_REPAIRS); }

std::vector<const Repair*> Repairs::matching(const std::string& kind, const Features& features) const {
  return matching_in(entries_, kind, features);
}

const Repair* Repairs::find(const std::string& kind, const Features& features) const {
  const auto found = matching(kind, features);
  return found.empty() ? nullptr : found.front();
}

std::vector<const Repair*> Repairs::unused() const {
  std::vector<const Repair*> unused;
  for (const auto& [kind, entries] : entries_) {
    for (const Repair& repair : entries) {
      if (!repair.used && !repair.unseen) unused.push_back(&repair);
    }
  }
  return unused;
}

}  // namespace oracle
