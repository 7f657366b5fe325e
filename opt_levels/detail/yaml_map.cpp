#include "opt_levels/detail/yaml_map.h"

#include <c10/util/Exception.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>

#include "opt_levels/detail/suggest.h"

namespace apex::opt_levels::detail {
namespace {

constexpr const char* kAmpKey = "amp";

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string kind_of(const YAML::Node& node) { return node.IsSequence() ? "a list" : node.IsMap() ? "a map" : "a value"; }

class Document {
 public:
  Document(const std::string& text, const std::string& source) : source_(source), root_(load(text)) {}

  std::vector<YamlEntry> entries(const std::vector<std::string>& known_keys) const {
    const YAML::Node block = amp_block(known_keys);
    std::vector<YamlEntry> entries;
    for (const auto& item : block) {
      check_key(item.first, known_keys);
      entries.push_back(entry(item.first, item.second));
    }
    return entries;
  }

 private:
  std::string place(const YAML::Mark& mark) const {
    if (mark.is_null()) return source_;
    return source_ + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
  }

  YAML::Node load(const std::string& text) const {
    try {
      const auto documents = YAML::LoadAll(text);
      TORCH_CHECK_VALUE(documents.size() == 1 && !documents[0].IsNull(), source_, ": found ",
                        documents.size() > 1 ? "several documents" : "nothing", "; allowed: one map such as 'opt_level: O2'.");
      return documents[0];
    } catch (const YAML::Exception& error) {
      TORCH_CHECK_VALUE(false, place(error.mark), ": this is not valid YAML: ", error.msg, ".");
    }
  }

  // The map itself, or the one under `amp`.
  YAML::Node amp_block(const std::vector<std::string>& known_keys) const {
    check_map(root_, "the document", root_.Mark());
    for (const auto& item : root_) {
      if (is_amp(item.first)) return nested_block(item.first, item.second, known_keys);
    }
    return root_;
  }

  YAML::Node nested_block(const YAML::Node& key, const YAML::Node& block, const std::vector<std::string>& known_keys) const {
    for (const auto& item : root_) {
      const bool stray = item.first.IsScalar() && contains(known_keys, item.first.Scalar());
      TORCH_CHECK_VALUE(!stray, place(item.first.Mark()), ": key '", item.first.Scalar(),
                        "' stands beside 'amp'. Move it into the 'amp' block.");
    }
    check_map(block, kAmpKey, mark_of(key, block));
    return block;
  }

  void check_map(const YAML::Node& node, const char* what, const YAML::Mark& mark) const {
    TORCH_CHECK_VALUE(node.IsMap(), place(mark), ": ", what, ": found ", node.IsNull() ? "nothing" : kind_of(node),
                      "; allowed: a map such as 'opt_level: O2'.");
    check_keys_once(node);
  }

  void check_keys_once(const YAML::Node& map) const {
    std::map<std::string, YAML::Mark> first;
    for (const auto& item : map) {
      TORCH_CHECK_VALUE(item.first.IsScalar(), place(item.first.Mark()), ": found ", kind_of(item.first),
                        " as a key; allowed: a name.");
      const auto [seen, is_new] = first.emplace(item.first.Scalar(), item.first.Mark());
      TORCH_CHECK_VALUE(is_new, place(item.first.Mark()), ": key '", seen->first, "' stands here again, first at ",
                        place(seen->second), ". Keep one of the two.");
    }
  }

  void check_key(const YAML::Node& key, const std::vector<std::string>& known_keys) const {
    TORCH_CHECK_VALUE(contains(known_keys, key.Scalar()), place(key.Mark()), ": unknown key '", key.Scalar(), "'.",
                      did_you_mean(key.Scalar(), known_keys), " Known keys are ", join(known_keys), ".");
  }

  YamlEntry entry(const YAML::Node& key, const YAML::Node& value) const {
    TORCH_CHECK_VALUE(value.IsScalar() || value.IsNull(), place(value.Mark()), ": ", key.Scalar(), ": found ", kind_of(value),
                      "; allowed: a single value.");
    const std::string text = value.IsNull() ? "" : value.Scalar();
    const bool quoted = value.IsScalar() && value.Tag() != "?";  // the tag of a plain scalar
    return {key.Scalar(), place(key.Mark()), {text, quoted}, place(mark_of(key, value))};
  }

  // A value that is not there is marked where the next token is: its key tells more.
  static YAML::Mark mark_of(const YAML::Node& key, const YAML::Node& value) {
    return value.IsNull() ? key.Mark() : value.Mark();
  }

  static bool is_amp(const YAML::Node& key) { return key.IsScalar() && key.Scalar() == kAmpKey; }

  std::string source_;
  YAML::Node root_;
};

}  // namespace

std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source,
                                     const std::vector<std::string>& known_keys) {
  return Document(text, source).entries(known_keys);
}

std::string write_yaml_map(const std::vector<std::pair<std::string, std::string>>& entries) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const auto& [key, value] : entries) out << YAML::Key << key << YAML::Value << value;
  out << YAML::EndMap;
  return std::string(out.c_str(), out.size()) + "\n";
}

void reject_entry(const YamlEntry& entry, const std::string& allowed) {
  const std::string found = entry.value.text.empty() ? "nothing"
                                                     : (entry.value.quoted ? "the string \"" : "'") + entry.value.text +
                                                           (entry.value.quoted ? "\"" : "'");
  TORCH_CHECK_VALUE(false, entry.value_place, ": ", entry.key, ": found ", found, "; allowed: ", allowed, ".");
}

}  // namespace apex::opt_levels::detail
