#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace oracle {

// A value of a JSON document that nlohmann-json has read, and where it stands: every error names the file and the path to the
// value (RFC 6901: "case.json:/events/3/input"). Objects keep their order.
class Json {
 public:
  using Member = std::pair<std::string, Json>;

  // Throws std::runtime_error on anything that is not JSON, and on an object that has a name twice.
  static Json parse(const std::string& text, const std::string& source);
  static Json parse_file(const std::filesystem::path& path);

  // A null of no document.
  Json();

  bool is_null() const;
  bool is_bool() const;
  bool is_string() const;
  bool is_number() const;
  bool is_array() const;

  // Each throws std::runtime_error when the value is of another kind.
  bool as_bool() const;
  // A number, or one of the strings "inf", "-inf", "nan".
  double as_double() const;
  int64_t as_int() const;
  const std::string& as_string() const;
  const std::vector<Json>& items() const;
  const std::vector<Member>& members() const;
  std::vector<int64_t> as_ints() const;

  // nullptr when there is no such member.
  const Json* find(const std::string& name) const;
  const Json& at(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }

  bool bool_or(const std::string& name, bool fallback) const;
  int64_t int_or(const std::string& name, int64_t fallback) const;
  std::string string_or(const std::string& name, const std::string& fallback) const;

  // The value as it could stand in a message: "0.5", "inf", "true", "null", "[2 items]".
  std::string text() const;
  std::string where() const;

 private:
  struct Document;
  Json(std::shared_ptr<const Document> document, const nlohmann::ordered_json& value, std::string path);
  [[noreturn]] void wrong_kind(const char* wanted) const;

  std::shared_ptr<const Document> document_;
  const nlohmann::ordered_json* value_;  // in the document
  std::string path_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

}  // namespace oracle
