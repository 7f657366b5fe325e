#include "tests/oracle/json.h"

#include <yaml-cpp/yaml.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace oracle {
namespace {

// RFC 8259's number: -? int frac? exp?
bool is_json_number(const std::string& text) {
  size_t i = 0;
  auto digits = [&] {
    size_t start = i;
    while (i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]))) ++i;
    return i > start;
  };
  if (i < text.size() && text[i] == '-') ++i;
  size_t integer = i;
  if (!digits() || (text[integer] == '0' && i - integer > 1)) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (!digits()) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (!digits()) return false;
  }
  return i == text.size();
}

}  // namespace

class JsonReader {
 public:
  explicit JsonReader(const std::string& source) : source_(std::make_shared<const std::string>(source)) {}

  Json read(const YAML::Node& node) const {
    Json json;
    json.source_ = source_;
    json.line_ = node.Mark().line + 1;
    json.column_ = node.Mark().column + 1;
    switch (node.Type()) {
      case YAML::NodeType::Sequence:
        read_array(node, json);
        break;
      case YAML::NodeType::Map:
        read_object(node, json);
        break;
      case YAML::NodeType::Scalar:
        read_scalar(node, json);
        break;
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Undefined:
        throw std::runtime_error(json.where() + ": no value");
    }
    return json;
  }

 private:
  void read_array(const YAML::Node& node, Json& json) const {
    json.kind_ = Json::Kind::array;
    for (const auto& item : node) json.items_.push_back(read(item));
  }

  void read_object(const YAML::Node& node, Json& json) const {
    json.kind_ = Json::Kind::object;
    for (const auto& member : node) {
      if (member.first.Tag() != "!") throw std::runtime_error(json.where() + ": an object's names must be quoted strings");
      json.members_.emplace_back(member.first.Scalar(), read(member.second));
    }
  }

  // yaml-cpp marks a quoted scalar with the tag "!".
  void read_scalar(const YAML::Node& node, Json& json) const {
    json.text_ = node.Scalar();
    if (node.Tag() == "!") {
      json.kind_ = Json::Kind::string;
    } else if (json.text_ == "true" || json.text_ == "false") {
      json.kind_ = Json::Kind::boolean;
    } else if (is_json_number(json.text_)) {
      json.kind_ = Json::Kind::number;
    } else {
      throw std::runtime_error(json.where() + ": '" + json.text_ + "' is not a JSON value; strings need quotes");
    }
  }

  std::shared_ptr<const std::string> source_;
};

Json Json::parse(const std::string& text, const std::string& source) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    throw std::runtime_error(source + ":" + std::to_string(error.mark.line + 1) + ":" + std::to_string(error.mark.column + 1) +
                             ": not JSON: " + error.msg);
  }
  if (documents.size() != 1) {
    throw std::runtime_error(source + ": expected one JSON document, found " + std::to_string(documents.size()));
  }
  return JsonReader(source).read(documents[0]);
}

Json Json::parse_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  return parse(text.str(), path.string());
}

std::string Json::where() const {
  return (source_ ? *source_ : "<json>") + ":" + std::to_string(line_) + ":" + std::to_string(column_);
}

void Json::wrong_kind(const char* wanted) const {
  throw std::runtime_error(where() + ": expected " + wanted + ", found " + text());
}

bool Json::as_bool() const {
  if (kind_ != Kind::boolean) wrong_kind("true or false");
  return text_ == "true";
}

double Json::as_double() const {
  if (kind_ == Kind::number) return std::strtod(text_.c_str(), nullptr);
  if (kind_ == Kind::string) {
    if (text_ == "inf") return std::numeric_limits<double>::infinity();
    if (text_ == "-inf") return -std::numeric_limits<double>::infinity();
    if (text_ == "nan") return std::numeric_limits<double>::quiet_NaN();
  }
  wrong_kind("a number");
}

int64_t Json::as_int() const {
  if (kind_ != Kind::number) wrong_kind("an integer");
  errno = 0;
  char* end = nullptr;
  const int64_t value = std::strtoll(text_.c_str(), &end, 10);
  if (*end != '\0' || errno == ERANGE) wrong_kind("an integer of 64 bits");
  return value;
}

const std::string& Json::as_string() const {
  if (kind_ != Kind::string) wrong_kind("a string");
  return text_;
}

const std::vector<Json>& Json::items() const {
  if (kind_ != Kind::array) wrong_kind("an array");
  return items_;
}

const std::vector<Json::Member>& Json::members() const {
  if (kind_ != Kind::object) wrong_kind("an object");
  return members_;
}

std::vector<int64_t> Json::as_ints() const {
  std::vector<int64_t> values;
  for (const auto& item : items()) values.push_back(item.as_int());
  return values;
}

const Json* Json::find(const std::string& name) const {
  for (const auto& [key, value] : members()) {
    if (key == name) return &value;
  }
  return nullptr;
}

const Json& Json::at(const std::string& name) const {
  const Json* value = find(name);
  if (!value) throw std::runtime_error(where() + ": no member '" + name + "'");
  return *value;
}

bool Json::bool_or(const std::string& name, bool fallback) const {
  const Json* value = find(name);
  return value ? value->as_bool() : fallback;
}

int64_t Json::int_or(const std::string& name, int64_t fallback) const {
  const Json* value = find(name);
  return value ? value->as_int() : fallback;
}

std::string Json::string_or(const std::string& name, const std::string& fallback) const {
  const Json* value = find(name);
  return value ? value->as_string() : fallback;
}

std::string Json::text() const {
  switch (kind_) {
    case Kind::null:
      return "null";
    case Kind::array:
      return "[" + std::to_string(items_.size()) + " items]";
    case Kind::object:
      return "{" + std::to_string(members_.size()) + " members}";
    default:
      return text_;
  }
}

}  // namespace oracle
