#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/oracle/reading/json.h"

namespace oracle {

// The features of a place in a recording: names and values as text.
using Features = std::map<std::string, std::string>;

// One entry of the repair file: a place where the library intentionally differs from the recording, and the expected result.
struct Repair {
  Features when;     // matches a place with all of these features; values may contain * and ?
  Json expect;       // the expected result; its form depends on the kind of entry
  std::string item;  // the id of a rule of Apex, or "C++"
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
  // Entries without a match so far, except for those that are marked unseen.
  std::vector<const Repair*> unused() const;

 private:
  static Repairs read(const Json& json);

  std::map<std::string, std::vector<Repair>> entries_;
};

}  // namespace oracle
