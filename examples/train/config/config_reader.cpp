#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>

#include <yaml-cpp/yaml.h>

#include <opt_levels/detail/values.h>
#include <opt_levels/detail/yaml_map.h>

#include "config/config_keys.h"
#include "config/config_text.h"
#include "errors.h"

namespace train {
namespace {

using apex::opt_levels::detail::column_of_tab;
using apex::opt_levels::detail::did_you_mean;
using apex::opt_levels::detail::join;
using apex::opt_levels::detail::line_of_second_document;
using apex::opt_levels::detail::nearest;

std::vector<std::string> keys_of(const YAML::Node& map) {
  std::vector<std::string> keys;
  for (const auto& entry : map) {
    if (entry.first.IsScalar()) {
      keys.push_back(entry.first.Scalar());
    }
  }
  return keys;
}

template <class Number>
std::string range_text(Number low, Number high) {
  std::ostringstream line;
  line << low << " to " << high;
  return line.str();
}

// Reads on after a mistake, so that all are reported together.
class Reader : public ConfigKeys {
 public:
  Reader(YAML::Node map, const std::string& text, const std::string& source, std::vector<Mistake>& mistakes)
      : map_(std::move(map)), mark_(map_.Mark()), text_(text), source_(source), mistakes_(mistakes), keys_(keys_of(map_)) {}

  // Of a section of `outer`, which may lack it.
  Reader(const YAML::Node& section, const std::string& key, const Reader& outer)
      : map_(section ? section : YAML::Node(YAML::NodeType::Map)),
        mark_(section ? section.Mark() : outer.mark_),
        text_(outer.text_),
        source_(outer.source_),
        mistakes_(outer.mistakes_),
        prefix_(outer.prefix_ + key + "."),
        keys_(section ? keys_of(map_) : outer.keys_) {}

  bool has(const std::string& key) override { return static_cast<bool>(find(key)); }

  void text(const std::string& key, std::string& value) override { scalar(key, find(key), value, "text"); }

  void choice(const std::string& key, std::string& value, const std::vector<std::string>& allowed) override {
    const auto node = value.empty() ? find_needed(key) : find(key);
    if (!node && value.empty()) {
      missing(key, "one of " + join(allowed));
    } else if (scalar(key, node, value, "text") && std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      fail(key, "'" + value + "' is not one of " + join(allowed) + suggestion(value, allowed));
      value = nearest(value, allowed);
    }
    rest_is_unclear_ = rest_is_unclear_ || (value.empty() && !prefix_.empty());
  }

  void integer(const std::string& key, int64_t& value, int64_t low, int64_t high) override {
    if (scalar(key, find(key), value, "an integer")) check_range(key, value, std::to_string(value), low, high);
  }

  void real(const std::string& key, double& value, double low, double high) override {
    const auto node = std::isnan(value) ? find_needed(key) : find(key);
    if (!node && std::isnan(value)) {
      missing(key, "a number from " + range_text(low, high));
    } else if (scalar(key, node, value, "a number")) {
      check_range(key, value, node.Scalar(), low, high);
    }
  }

  void flag(const std::string& key, bool& value) override { scalar(key, find(key), value, "true or false"); }

  void integers(const std::string& key, std::vector<int64_t>& values, int64_t low, int64_t high) override {
    const auto node = values.empty() ? find_needed(key) : find(key);
    if (!node) {
      if (values.empty()) missing(key, "a list of integers such as [16, 32]");
      return;
    }
    try {
      values.clear();
      if (node.IsSequence()) values = node.as<std::vector<int64_t>>();
    } catch (const YAML::Exception&) {
    }
    if (values.empty()) {
      const bool is_empty = node.IsSequence() && node.size() == 0;
      fail(key,
           is_empty ? "the list is empty; expected a list such as [16, 32]" : "expected a list of integers such as [16, 32]");
    }
    for (const auto value : values) {
      if (!check_range(key, value, std::to_string(value), low, high)) break;
    }
  }

  void entries(const std::string& key, const std::string& example,
               const std::function<void(const std::string&)>& take) override {
    const auto node = find_needed(key);
    if (!node) return missing(key, "a list such as " + example);
    if (!node.IsSequence()) return fail(key, "expected a list such as " + example);
    if (node.size() == 0) return fail(key, "the list is empty; expected a list such as " + example);
    for (const auto& entry : node) {
      if (entry.IsMap() || (entry.IsScalar() && !entry.Scalar().empty())) {
        attempt(key, entry.Mark(), [&] { take(entry.IsMap() ? in_braces(entry) : entry.Scalar()); });
      } else {
        fail(key, "expected texts or mappings in the list");
      }
    }
  }

  void section(const std::string& key, const std::function<void(ConfigKeys&)>& describe) override {
    const auto node = find_needed(key);
    if (node && !node.IsMap()) return fail(key, "expected a mapping of keys");
    Reader inner(node, key, *this);
    describe(inner);
    inner.refuse_other_keys();
  }

  void block(const std::string& key, const std::function<void(const std::string&)>& read, const std::string&) override {
    const auto node = find_needed(key);
    if (!node) return missing(key, "a mapping of keys");
    if (!node.IsMap()) return fail(key, "expected a mapping of keys");
    // In braces it may share its lines with other keys.
    const bool is_in_braces = node.Style() == YAML::EmitterStyle::Flow;
    const auto text = is_in_braces ? in_braces(node) : blanked_before(text_, node.Mark(), line_after(node.Mark()));
    attempt(key, node.Mark(), [&] { read(text); });
  }

  bool require(bool holds, const std::string& key, const std::string& otherwise) override {
    if (!holds && !has_failed_) fail(key, otherwise);
    return holds;
  }

  void refuse_other_keys() {
    std::set<std::string> seen;
    std::vector<std::string> left;
    std::copy_if(asked_.begin(), asked_.end(), std::back_inserter(left),
                 [this](const std::string& key) { return !given(key); });
    for (const auto& entry : map_) {
      const auto key = entry.first.Scalar();
      if (!seen.insert(key).second) {
        fail_at(entry.first.Mark(), key, "given twice");
      } else if (!rest_is_unclear_ && !is_one_of(key, asked_) && !is_one_of(key, mistyped_)) {
        fail_at(entry.first.Mark(), key, "unknown key; known here: " + join(asked_) + suggestion(key, left));
      }
    }
  }

 private:
  static bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  }

  static std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
    const auto text = did_you_mean(word, known);
    return text.empty() ? "" : "." + text;
  }

  bool given(const std::string& key) const { return is_one_of(key, keys_of(map_)); }

  YAML::Node find(const std::string& key) {
    asked_.push_back(key);
    for (const auto& entry : map_) {
      if (entry.first.IsScalar() && entry.first.Scalar() == key) {
        return entry.second;
      }
    }
    return YAML::Node(YAML::NodeType::Undefined);
  }

  // As `find`; where the key is missing and there is one that nobody knows and that is near to it, the value of that.
  YAML::Node find_needed(const std::string& key) {
    const auto node = find(key);
    if (node) return node;
    for (const auto& entry : map_) {
      if (!entry.first.IsScalar() || is_one_of(entry.first.Scalar(), asked_) || nearest(entry.first.Scalar(), {key}).empty())
        continue;
      mistyped_.push_back(entry.first.Scalar());
      fail_at(entry.first.Mark(), entry.first.Scalar(), "unknown key" + suggestion(entry.first.Scalar(), {key}));
      return entry.second;
    }
    return node;
  }

  // Reads a scalar where there is one; says whether it did.
  template <class Value>
  bool scalar(const std::string& key, const YAML::Node& node, Value& value, const char* expected) {
    if (!node) {
      return false;
    }
    if (!node.IsScalar()) {
      fail(key, std::string("expected ") + expected);
      return false;
    }
    try {
      value = node.as<Value>();
    } catch (const YAML::Exception&) {
      fail(key, std::string("expected ") + expected + ", got '" + node.Scalar() + "'");
      return false;
    }
    return true;
  }

  template <class Number>
  bool check_range(const std::string& key, Number value, const std::string& written, Number low, Number high) {
    const bool holds = value >= low && value <= high;
    if (!holds) fail(key, written + " is out of range (" + range_text(low, high) + ")");
    return holds;
  }

  int line_after(const YAML::Mark& begin) const {
    int next = -1;
    for (const auto& entry : map_) {
      const int line = entry.first.Mark().line;
      if (line > begin.line && (next < 0 || line < next)) {
        next = line;
      }
    }
    return next;
  }

  // What another reader makes of a value; its mistakes have their own places, or that of the value.
  void attempt(const std::string& key, const YAML::Mark& mark, const std::function<void()>& action) {
    try {
      action();
    } catch (const UserError& error) {
      has_failed_ = true;
      const std::string message = error.what();
      mistakes_.push_back({mark, begins_with_place(message) ? message : where(mark, key) + message});
    }
  }

  std::string where(const YAML::Mark& mark, const std::string& key) const {
    return place(source_, mark) + "key '" + prefix_ + key + "': ";
  }

  void fail(const std::string& key, const std::string& message) {
    auto mark = mark_;
    for (const auto& entry : map_) {
      if (entry.first.IsScalar() && entry.first.Scalar() == key) {
        mark = entry.second.IsNull() ? entry.first.Mark() : entry.second.Mark();
      }
    }
    fail_at(mark, key, message);
  }

  void fail_at(const YAML::Mark& mark, const std::string& key, const std::string& message) {
    has_failed_ = true;
    mistakes_.push_back({mark, where(mark, key) + message});
  }

  void missing(const std::string& key, const std::string& expected) {
    if (rest_is_unclear_) return;
    fail(key, "missing; expected " + expected + (keys_.empty() ? "" : "; there are the keys " + join(keys_)));
  }

  YAML::Node map_;
  YAML::Mark mark_;
  const std::string& text_;
  const std::string& source_;
  std::vector<Mistake>& mistakes_;
  std::string prefix_;
  std::vector<std::string> keys_;  // those that are there; of a section that is not, those of the map that lacks it
  std::vector<std::string> asked_;
  std::vector<std::string> mistyped_;  // keys whose values were read in place of missing ones
  bool has_failed_ = false;
  bool rest_is_unclear_ = false;  // of a section whose choice, which says what other keys there are, could not be read
};

}  // namespace

void read_keys(const std::string& text, const std::string& source, const std::function<void(ConfigKeys&)>& describe) {
  YAML::Node root;
  int64_t second_document = 0;
  try {
    root = YAML::Load(text);
    second_document = line_of_second_document(text);
  } catch (const YAML::ParserException& error) {
    const auto tab = column_of_tab(text, error.mark.line);
    if (tab == 0) throw UserError(place(source, error.mark) + "not YAML: " + error.msg);
    throw UserError(source + ":" + std::to_string(error.mark.line + 1) + ":" + std::to_string(tab) +
                    ": not YAML: a tab indents the line; indent with spaces");
  }
  if (second_document != 0) {
    throw UserError(source + ":" + std::to_string(second_document) + ":1: a second document begins; write all keys in one");
  }
  if (!root.IsMap()) {
    throw UserError(source + ":1:1: expected a mapping of keys such as 'epochs: 10'");
  }
  std::vector<Mistake> mistakes;
  Reader reader(root, text, source, mistakes);
  describe(reader);
  reader.refuse_other_keys();
  report(std::move(mistakes));
}

}  // namespace train
