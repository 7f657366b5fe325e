#pragma once
// Checked access to the JSON text of a training state. Errors name the value by its path, such as
// "optimizer/param_groups/0/lr".
#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace apex::amp::detail {

/// A value of a training state, and its path.
class StateValue {
 public:
  StateValue(const nlohmann::json& value, std::string path) : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& json() const { return value_; }
  bool is_null() const { return value_.is_null(); }

  /// Errors: c10::Error if this is no object or lacks the member.
  StateValue member(const std::string& key) const;
  /// Errors: c10::Error unless this is an object with only these members.
  void check_keys(const std::initializer_list<const char*>& allowed) const;
  /// Errors: c10::Error if this is no list.
  size_t size() const;
  StateValue element(size_t index) const { return {value_.at(index), path_ + "/" + std::to_string(index)}; }

  /// Errors of all: c10::Error for another type; `number` also for one that is not finite, `count` for one that is not whole or
  /// below `lowest`.
  double number() const;
  bool flag() const;
  std::string text() const;
  int64_t count(int64_t lowest = 0) const;

  /// Throws c10::Error: the path, the value and what was expected.
  [[noreturn]] void refuse(const std::string& expected) const;

 private:
  const nlohmann::json& value_;
  std::string path_;
};

}  // namespace apex::amp::detail
