#include "tests/oracle/reading/json.h"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>

namespace oracle {
namespace {

using Value = nlohmann::ordered_json;

// Reads a document; of an object that has a name twice, nlohmann-json would keep one without a word.
Value parse_strictly(const std::string& text) {
  std::vector<std::set<std::string>> names;
  return Value::parse(text, [&](int, Value::parse_event_t event, Value& parsed) {
    if (event == Value::parse_event_t::object_start) names.emplace_back();
    if (event == Value::parse_event_t::object_end) names.pop_back();
    if (event == Value::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second) {
      throw std::runtime_error("an object has the name " + parsed.dump() + " twice");
    }
    return true;
  });
}

// A name as a step of a path.
std::string step_to(const std::string& name) { return (Value::json_pointer() / name).to_string(); }

}  // namespace

struct Json::Document {
  std::string source;
  Value root;
};

Json Json::parse(const std::string& text, const std::string& source) {
  try {
    const auto document = std::make_shared<const Document>(Document{source, parse_strictly(text)});
    return Json(document, document->root, "");
  } catch (const std::exception& error) {
    throw std::runtime_error(source + ": not JSON: " + error.what());
  }
}

Json Json::parse_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  return parse(text.str(), path.string());
}

Json::Json() : Json(parse("null", "<no document>")) {}

Json::Json(std::shared_ptr<const Document> document, const Value& value, std::string path)
    : document_(std::move(document)), value_(&value), path_(std::move(path)) {
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) items_.push_back(Json(document_, value[i], path_ + "/" + std::to_string(i)));
  }
  if (!value.is_object()) return;
  for (const auto& [name, member] : value.items()) {
    members_.emplace_back(name, Json(document_, member, path_ + step_to(name)));
  }
}

std::string Json::where() const { return document_->source + (path_.empty() ? "" : ":") + path_; }

void Json::wrong_kind(const char* wanted) const {
  throw std::runtime_error(where() + ": expected " + wanted + ", found " + text());
}

bool Json::is_null() const { return value_->is_null(); }
bool Json::is_bool() const { return value_->is_boolean(); }
bool Json::is_string() const { return value_->is_string(); }
bool Json::is_number() const { return value_->is_number(); }
bool Json::is_array() const { return value_->is_array(); }

bool Json::as_bool() const {
  if (!is_bool()) wrong_kind("true or false");
  return value_->get<bool>();
}

double Json::as_double() const {
  if (is_number()) return value_->get<double>();
  if (text() == "inf") return std::numeric_limits<double>::infinity();
  if (text() == "-inf") return -std::numeric_limits<double>::infinity();
  if (text() == "nan") return std::numeric_limits<double>::quiet_NaN();
  wrong_kind("a number");
}

int64_t Json::as_int() const {
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  const bool too_large = value_->is_number_unsigned() && value_->get<uint64_t>() > kLargest;
  if (!value_->is_number_integer() || too_large) wrong_kind("an integer of 64 bits");
  return value_->get<int64_t>();
}

const std::string& Json::as_string() const {
  if (!is_string()) wrong_kind("a string");
  return value_->get_ref<const std::string&>();
}

const std::vector<Json>& Json::items() const {
  if (!is_array()) wrong_kind("an array");
  return items_;
}

const std::vector<Json::Member>& Json::members() const {
  if (!value_->is_object()) wrong_kind("an object");
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
  if (is_array()) return "[" + std::to_string(items_.size()) + " items]";
  if (value_->is_object()) return "{" + std::to_string(members_.size()) + " members}";
  return is_string() ? as_string() : value_->dump();
}

}  // namespace oracle
