#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/oracle/reading/json.h"

namespace oracle {

// What is known about a place of a recording: names of features and their values as text.
using Features = std::map<std::string, std::string>;

// One entry of the repair file: where Apex recorded what this library does otherwise on purpose, and what holds there instead.
struct Repair {
  Features when;     // matches a place that has all of these; values may hold * and ?
  Json expect;       // what holds instead; its form depends on the kind of entry
  std::string item;  // id of a rule in apex_cpp/apex_behaviour.md, or "C++"
  std::string reason;
  bool unseen = false;  // no committed recording has such a place
  mutable bool used = false;

  std::string text() const;
};

// The repair file: kinds of entries ("events", "calls", "casts", "modules"), each a list. README.md has the format.
class Repairs {
 public:
  // Throws std::runtime_error on an entry that is not complete.
  static Repairs from_file(const std::filesystem::path& path);
  static Repairs parse(const std::string& text, const std::string& source);
  // tests/oracle/repairs.json
  static Repairs standard();

  // All entries of a kind that match, each marked as used.
  std::vector<const Repair*> matching(const std::string& kind, const Features& features) const;
  // The first of them, or null.
  const Repair* find(const std::string& kind, const Features& features) const;
  // Entries that nothing matched so far, but for those that no committed recording needs.
  std::vector<const Repair*> unused() const;

 private:
  std::map<std::string, std::vector<Repair>> entries_;
};

}  // namespace oracle
