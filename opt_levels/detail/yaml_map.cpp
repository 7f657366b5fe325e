#include "opt_levels/detail/yaml_map.h"

#include <c10/util/Exception.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <new>
#include <sstream>

#include "opt_levels/detail/values.h"

namespace apex::opt_levels::detail {
namespace {

constexpr const char* kAmpKey = "amp";
constexpr int kMostLevels = 16;      // of maps and lists within each other
constexpr int kMostValues = 100000;  // of a document; an alias counts as the values that it names

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

using Kind = YamlEntry::Kind;

Kind kind_of(const YAML::Node& node) { return node.IsSequence() ? Kind::list : node.IsMap() ? Kind::map : Kind::scalar; }

const char* kind_name(Kind kind) { return kind == Kind::list ? "a list" : kind == Kind::map ? "a map" : "a value"; }

/// Notes where each document of a parse begins, and ignores all else.
class DocumentStarts : public YAML::EventHandler {
 public:
  std::vector<int64_t> lines;  // counted from 1

  void OnDocumentStart(const YAML::Mark& mark) override { lines.push_back(mark.line + 1); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// True if the yaml-cpp functions in the process are those that this file was compiled for. An executable's functions take
/// precedence over a shared library's functions of the same name, and the nodes of another yaml-cpp version have other members.
/// The test node is therefore created in zeroed memory and never destroyed.
bool has_matching_yaml_cpp() {
  alignas(YAML::Node) static unsigned char zeros[4 * sizeof(YAML::Node)];
  const YAML::Node& node = *new (zeros) YAML::Node(YAML::Load(std::string("key: value")));
  return node.IsMap() && node["key"].Scalar() == "value";
}

void check_yaml_cpp() {
  static const bool matches = has_matching_yaml_cpp();
  TORCH_CHECK(matches,
              "yaml-cpp cannot read 'key: value': this program contains a different yaml-cpp from the one that apex_cpp was "
              "built with, and calls go to the wrong one. Hide the program's yaml-cpp with the link option "
              "-Wl,--exclude-libs,libyaml-cpp.a, or build apex_cpp with the program's yaml-cpp.");
}

/// True if yaml-cpp can write the text in quotes and read it again: it writes U+FFFD for what is not a character in UTF-8.
bool can_be_written(const std::string& text) {
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x80; })) return true;
  YAML::Emitter out;
  out << YAML::DoubleQuoted << text;
  return YAML::Load(out.c_str()).Scalar() == text;
}

class Document {
 public:
  Document(const std::string& text, const std::string& source, const YamlForm& form)
      : source_(source), form_(form), root_(load(text)) {}

  std::vector<YamlEntry> entries(Mistakes& mistakes) {
    std::vector<YamlEntry> entries;
    for (const auto& item : block()) {
      mistakes.collect([&] {
        const auto found = entry(item.first, item.second);
        check_key(found, form_.keys);
        if (!contains(form_.nested, found.key)) check_kind(found, Kind::scalar, "a single value");
        entries.push_back(found);
      });
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
      const bool several = line_of_second_document(text) != 0;
      const YAML::Node document = YAML::Load(text);
      TORCH_CHECK_VALUE(!several && !document.IsNull(), source_, ": found ", several ? "several documents" : "nothing",
                        "; allowed: one map such as '", form_.example, "'.");
      return document;
    } catch (const YAML::Exception& error) {
      const auto tab = error.mark.is_null() ? 0 : column_of_tab(text, error.mark.line);
      TORCH_CHECK_VALUE(tab == 0, source_, ":", error.mark.line + 1, ":", tab,
                        ": this is not valid YAML: a tab indents the line. Indent with spaces.");
      TORCH_CHECK_VALUE(false, place(error.mark), ": this is not valid YAML: ", error.msg, ".");
    }
  }

  // The map of the document, or the map under `amp`.
  YAML::Node block() const {
    check_map(root_, "the document", root_.Mark());
    if (!form_.allows_amp_key) return root_;
    for (const auto& item : root_) {
      if (is_amp(item.first)) return amp_block(item.first, item.second);
    }
    return root_;
  }

  YAML::Node amp_block(const YAML::Node& key, const YAML::Node& block) const {
    for (const auto& item : root_) {
      const bool is_misplaced = item.first.IsScalar() && contains(form_.keys, item.first.Scalar());
      TORCH_CHECK_VALUE(!is_misplaced, place(item.first.Mark()), ": key '", item.first.Scalar(),
                        "' is outside of the 'amp' block. Move it into the block.");
    }
    check_map(block, kAmpKey, mark_of(key, block));
    return block;
  }

  void check_map(const YAML::Node& node, const char* what, const YAML::Mark& mark) const {
    TORCH_CHECK_VALUE(node.IsMap(), place(mark), ": ", what, ": found ", node.IsNull() ? "nothing" : kind_name(kind_of(node)),
                      "; allowed: a map such as '", form_.example, "'.");
    check_keys_once(node);
  }

  void check_keys_once(const YAML::Node& map) const {
    std::map<std::string, YAML::Mark> first;
    for (const auto& item : map) {
      TORCH_CHECK_VALUE(item.first.IsScalar(), place(item.first.Mark()), ": found ", kind_name(kind_of(item.first)),
                        " as a key; allowed: a name.");
      const auto [seen, is_new] = first.emplace(text_of(item.first), item.first.Mark());
      TORCH_CHECK_VALUE(is_new, place(item.first.Mark()), ": key '", seen->first, "' appears twice, first at ",
                        place(seen->second), ". Keep one of the two.");
    }
  }

  std::string text_of(const YAML::Node& scalar) const {
    TORCH_CHECK_VALUE(can_be_written(scalar.Scalar()), place(scalar.Mark()), ": a text is not UTF-8. Save the file as UTF-8.");
    return scalar.Scalar();
  }

  YamlEntry entry(const YAML::Node& key, const YAML::Node& value, int level = 0) {
    YamlEntry entry = entry_without_key(value, level);
    entry.key = key.Scalar();
    entry.key_place = place(key.Mark());
    entry.value_place = place(mark_of(key, value));
    return entry;
  }

  YamlEntry entry_without_key(const YAML::Node& value, int level) {
    TORCH_CHECK_VALUE(level < kMostLevels, place(value.Mark()), ": maps and lists are nested more than ", kMostLevels,
                      " deep. Take an alias (*name) out of what it names.");
    TORCH_CHECK_VALUE(++values_ <= kMostValues, place(value.Mark()), ": the document has more than ", kMostValues,
                      " values, counting those that aliases (*name) repeat. Use fewer aliases.");
    YamlEntry entry;
    entry.kind = kind_of(value);
    entry.value_place = place(value.Mark());
    if (value.IsScalar()) entry.value = {text_of(value), value.Tag() != "?"};  // "?" is the tag of a scalar without quotes
    if (value.IsMap()) check_keys_once(value);
    for (const auto& item : value) {
      entry.children.push_back(value.IsMap() ? this->entry(item.first, item.second, level + 1)
                                             : entry_without_key(item, level + 1));
    }
    return entry;
  }

  // yaml-cpp gives a missing value the mark of the next token. The mark of its key is more useful.
  static YAML::Mark mark_of(const YAML::Node& key, const YAML::Node& value) {
    return value.IsNull() ? key.Mark() : value.Mark();
  }

  static bool is_amp(const YAML::Node& key) { return key.IsScalar() && key.Scalar() == kAmpKey; }

  std::string source_;
  const YamlForm& form_;
  YAML::Node root_;
  int values_ = 0;
};

}  // namespace

void Mistakes::check() const { TORCH_CHECK_VALUE(texts_.empty(), join(texts_, "\n")); }

std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source, const YamlForm& form,
                                     Mistakes& mistakes) {
  check_yaml_cpp();
  return Document(text, source, form).entries(mistakes);
}

std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source, const YamlForm& form) {
  Mistakes mistakes;
  auto entries = read_yaml_map(text, source, form, mistakes);
  mistakes.check();
  return entries;
}

// YAML::LoadAll cannot tell: up to yaml-cpp 0.8 it finds endless documents in a text that continues with a comma.
int64_t line_of_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  return parser.HandleNextDocument(starts) && parser.HandleNextDocument(starts) ? starts.lines.at(1) : 0;
}

std::size_t column_of_tab(const std::string& text, int line) {
  std::size_t begin = 0;
  for (; line > 0 && begin != std::string::npos; --line) begin = text.find('\n', begin) + 1;
  const auto blanks_end = std::min(text.find_first_not_of(" \t", begin), text.size());
  const auto tab = text.find('\t', begin);
  return tab < blanks_end ? tab - begin + 1 : 0;
}

void check_key(const YamlEntry& entry, const std::vector<std::string>& known_keys) {
  TORCH_CHECK_VALUE(contains(known_keys, entry.key), entry.key_place, ": unknown key '", entry.key, "'.",
                    did_you_mean(entry.key, known_keys), " Known keys are ", join(known_keys), ".");
}

std::string write_yaml_map(const std::vector<std::pair<std::string, std::string>>& entries) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const auto& [key, value] : entries) out << YAML::Key << key << YAML::Value << value;
  out << YAML::EndMap;
  return std::string(out.c_str(), out.size()) + "\n";
}

std::string write_yaml_list(const std::string& key, const std::vector<std::string>& items) {
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << key << YAML::Value << YAML::BeginSeq;
  for (const auto& item : items) {
    if (Scalar{item}.is_none()) out << YAML::DoubleQuoted;  // more words than yaml-cpp itself quotes
    out << item;
  }
  out << YAML::EndSeq << YAML::EndMap;
  return std::string(out.c_str(), out.size()) + "\n";
}

std::string indented(const std::string& text) {
  std::string result;
  bool starts_line = true;
  for (const char letter : text) {
    if (starts_line && letter != '\n') result += "  ";
    result += letter;
    starts_line = letter == '\n';
  }
  return result;
}

void check_kind(const YamlEntry& entry, YamlEntry::Kind kind, const std::string& allowed) {
  if (entry.kind != kind) reject_entry(entry, allowed);
}

void reject_entry(const YamlEntry& entry, const std::string& allowed) {
  const std::string quotes = entry.value.quoted ? "the string \"" : "'";
  const std::string found = entry.kind != Kind::scalar ? kind_name(entry.kind)
                            : entry.value.text.empty() ? "nothing"
                                                       : quotes + entry.value.text + (entry.value.quoted ? "\"" : "'");
  TORCH_CHECK_VALUE(false, entry.value_place, ": ", entry.key, entry.key.empty() ? "" : ": ", "found ", found,
                    "; allowed: ", allowed, ".");
}

}  // namespace apex::opt_levels::detail
