#include <cmath>
#include <set>
#include <sstream>

#include <yaml-cpp/yaml.h>

#include "config/config_keys.h"
#include "errors.h"

namespace train {
namespace {

std::string place(const std::string& source, const YAML::Mark& mark) {
  const bool known = mark.line >= 0 && mark.column >= 0;
  return source + ":" + std::to_string(known ? mark.line + 1 : 1) + ":" + std::to_string(known ? mark.column + 1 : 1) + ": ";
}

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) {
    line += (line.empty() ? "" : ", ") + word;
  }
  return line;
}

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
  line << "from " << low << " to " << high;
  return line.str();
}

// The lines of `text` from `begin` up to line `end` (or the file's end), with everything before `begin` turned into blanks.
std::string blanked_before(const std::string& text, const YAML::Mark& begin, int end) {
  std::istringstream lines(text);
  std::string kept, line;
  for (int number = 0; (end < 0 || number < end) && std::getline(lines, line); ++number) {
    if (number < begin.line) {
      line.clear();
    } else if (number == begin.line) {
      line.replace(0, static_cast<size_t>(begin.column), static_cast<size_t>(begin.column), ' ');
    }
    kept += line + "\n";
  }
  return kept;
}

// A mapping in braces, at the line and column where it begins.
std::string in_braces(const YAML::Node& map) {
  auto flow = YAML::Clone(map);
  flow.SetStyle(YAML::EmitterStyle::Flow);
  const auto begin = map.Mark();
  return std::string(static_cast<size_t>(begin.line), '\n') + std::string(static_cast<size_t>(begin.column), ' ') +
         YAML::Dump(flow) + "\n";
}

class Reader : public ConfigKeys {
 public:
  Reader(YAML::Node map, YAML::Mark mark, const std::string& text, const std::string& source)
      : map_(std::move(map)), mark_(mark), text_(text), source_(source), keys_(keys_of(map_)) {}

  // Of a section of `outer`, which may lack it.
  Reader(const YAML::Node& section, const std::string& key, const Reader& outer)
      : map_(section ? section : YAML::Node(YAML::NodeType::Map)),
        mark_(section ? section.Mark() : outer.mark_),
        text_(outer.text_),
        source_(outer.source_),
        prefix_(outer.prefix_ + key + "."),
        keys_(section ? keys_of(map_) : outer.keys_) {}

  bool has(const std::string& key) override { return static_cast<bool>(find(key)); }

  void text(const std::string& key, std::string& value) override { scalar(key, value, "text"); }

  void choice(const std::string& key, std::string& value, const std::vector<std::string>& allowed) override {
    scalar(key, value, "text");
    if (value.empty()) {
      missing(key, "one of " + joined(allowed));
    }
    for (const auto& name : allowed) {
      if (value == name) {
        return;
      }
    }
    fail(key, "'" + value + "' is not one of " + joined(allowed));
  }

  void integer(const std::string& key, int64_t& value, int64_t low, int64_t high) override {
    scalar(key, value, "an integer");
    require(value >= low && value <= high, key, std::to_string(value) + " is not " + range_text(low, high));
  }

  void real(const std::string& key, double& value, double low, double high) override {
    if (!scalar(key, value, "a number") && std::isnan(value)) {
      missing(key, "a number " + range_text(low, high));
    }
    require(value >= low && value <= high, key, written(key) + " is not " + range_text(low, high));
  }

  void flag(const std::string& key, bool& value) override { scalar(key, value, "true or false"); }

  void integers(const std::string& key, std::vector<int64_t>& values, int64_t low, int64_t high) override {
    const auto node = find(key);
    if (node) {
      if (!node.IsSequence()) {
        fail(key, "expected a list of integers such as [16, 32]");
      }
      try {
        values = node.as<std::vector<int64_t>>();
      } catch (const YAML::Exception&) {
        fail(key, "expected a list of integers such as [16, 32]");
      }
    }
    require(!node || !values.empty(), key, "the list is empty; expected one such as [16, 32]");
    if (values.empty()) {
      missing(key, "a list of integers such as [16, 32]");
    }
    for (const auto value : values) {
      require(value >= low && value <= high, key, std::to_string(value) + " is not " + range_text(low, high));
    }
  }

  void entries(const std::string& key, std::vector<std::string>& texts, const std::string& example) override {
    const auto node = find(key);
    require(!node || node.IsSequence(), key, "expected a list such as " + example);
    for (const auto& entry : node) {
      require(entry.IsMap() || (entry.IsScalar() && !entry.Scalar().empty()), key, "expected texts or mappings in the list");
      texts.push_back(entry.IsMap() ? in_braces(entry) : entry.Scalar());
    }
    require(!node || !texts.empty(), key, "the list is empty; expected one such as " + example);
    if (!node) {
      missing(key, "a list such as " + example);
    }
  }

  void section(const std::string& key, const std::function<void(ConfigKeys&)>& describe) override {
    const auto node = find(key);
    if (node && !node.IsMap()) {
      fail(key, "expected a mapping of keys");
    }
    Reader inner(node, key, *this);
    describe(inner);
    inner.refuse_other_keys();
  }

  void block(const std::string& key, std::string& text) override {
    const auto node = find(key);
    if (!node) {
      missing(key, "a mapping of keys");
    }
    if (!node.IsMap()) {
      fail(key, "expected a mapping of keys");
    }
    // In braces it may share its lines with other keys.
    text = node.Style() == YAML::EmitterStyle::Flow ? in_braces(node)
                                                    : blanked_before(text_, node.Mark(), line_after(node.Mark()));
  }

  void require(bool holds, const std::string& key, const std::string& otherwise) override {
    if (!holds) {
      fail(key, otherwise);
    }
  }

  void refuse_other_keys() const {
    std::set<std::string> seen;
    for (const auto& entry : map_) {
      const auto key = entry.first.Scalar();
      const auto where = place(source_, entry.first.Mark()) + "key '" + prefix_ + key + "': ";
      if (!seen.insert(key).second) {
        throw UserError(where + "given twice");
      }
      bool known = false;
      for (const auto& name : asked_) {
        known = known || name == key;
      }
      if (!known) {
        throw UserError(where + "unknown key; known here: " + joined(asked_));
      }
    }
  }

 private:
  YAML::Node find(const std::string& key) {
    asked_.push_back(key);
    for (const auto& entry : map_) {
      if (entry.first.IsScalar() && entry.first.Scalar() == key) {
        return entry.second;
      }
    }
    return YAML::Node(YAML::NodeType::Undefined);
  }

  // Reads a scalar where the key is present; says whether it was.
  template <class Value>
  bool scalar(const std::string& key, Value& value, const char* expected) {
    const auto node = find(key);
    if (!node) {
      return false;
    }
    if (!node.IsScalar()) {
      fail(key, std::string("expected ") + expected);
    }
    try {
      value = node.as<Value>();
    } catch (const YAML::Exception&) {
      fail(key, std::string("expected ") + expected + ", got '" + node.Scalar() + "'");
    }
    return true;
  }

  std::string written(const std::string& key) const {
    const auto node = map_[key];
    return node ? node.Scalar() : "the default";
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

  [[noreturn]] void fail(const std::string& key, const std::string& message) const {
    auto mark = mark_;
    for (const auto& entry : map_) {
      if (entry.first.IsScalar() && entry.first.Scalar() == key) {
        mark = entry.second.IsNull() ? entry.first.Mark() : entry.second.Mark();
      }
    }
    throw UserError(place(source_, mark) + "key '" + prefix_ + key + "': " + message);
  }

  [[noreturn]] void missing(const std::string& key, const std::string& expected) const {
    fail(key, "missing; expected " + expected + (keys_.empty() ? "" : "; there are the keys " + joined(keys_)));
  }

  YAML::Node map_;
  YAML::Mark mark_;
  const std::string& text_;
  const std::string& source_;
  std::string prefix_;
  std::vector<std::string> keys_;  // those that are there; of a section that is not, those of the map that lacks it
  std::vector<std::string> asked_;
};

}  // namespace

void read_keys(const std::string& text, const std::string& source, const std::function<void(ConfigKeys&)>& describe) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::ParserException& error) {
    throw UserError(place(source, error.mark) + "not YAML: " + error.msg);
  }
  if (!root.IsMap()) {
    throw UserError(source + ":1:1: expected a mapping of keys such as 'epochs: 10'");
  }
  Reader reader(root, root.Mark(), text, source);
  describe(reader);
  reader.refuse_other_keys();
}

}  // namespace train
