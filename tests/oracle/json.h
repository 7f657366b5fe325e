#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace oracle {

// A JSON document, read with yaml-cpp (JSON is a subset of YAML). Objects keep their order. A value knows where it stands, so
// that every error names file, line and column. Numbers keep their text: integers of 64 bits and doubles come back exactly.
class Json {
 public:
  enum class Kind { null, boolean, number, string, array, object };
  using Member = std::pair<std::string, Json>;

  // Throws std::runtime_error on anything that is not JSON.
  static Json parse(const std::string& text, const std::string& source);
  static Json parse_file(const std::filesystem::path& path);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_number() const { return kind_ == Kind::number; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_object() const { return kind_ == Kind::object; }

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

  // The value as it could stand in a message: "0.5", "inf", "true", "null", "[...]".
  std::string text() const;
  std::string where() const;

 private:
  friend class JsonReader;
  [[noreturn]] void wrong_kind(const char* wanted) const;

  Kind kind_ = Kind::null;
  std::string text_;
  std::vector<Json> items_;
  std::vector<Member> members_;
  std::shared_ptr<const std::string> source_;
  int line_ = 0;
  int column_ = 0;
};

}  // namespace oracle
