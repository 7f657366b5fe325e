#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace apex::amp {

/// An integer, floating-point number, bool or string that a program saves in a checkpoint.
class MetadataValue {
 public:
  using Variant = std::variant<bool, int64_t, double, std::string>;

  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  MetadataValue(T value) : value_(held(value)) {}  // NOLINT: implicit, so that {{"epoch", 3}} is a Metadata
  MetadataValue(std::string value) : value_(std::move(value)) {}
  MetadataValue(const char* value) : value_(std::string(value)) {}

  /// Errors: TypeError for a value of another type; it has the key, if the value comes from a checkpoint, and the type. An
  /// integer also converts to double.
  bool to_bool() const;
  int64_t to_int() const;
  double to_double() const;
  const std::string& to_string() const;

  const Variant& variant() const { return value_; }
  /// The key under which the value was read, for messages.
  void set_key(std::string key) { key_ = std::move(key); }
  friend bool operator==(const MetadataValue& a, const MetadataValue& b);
  friend bool operator!=(const MetadataValue& a, const MetadataValue& b) { return !(a == b); }

 private:
  template <class T>
  static Variant held(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<int64_t>(value);
    } else {
      return static_cast<double>(value);
    }
  }
  template <class T>
  const T& get(const char* wanted) const;

  Variant value_;
  std::string key_;
};

/// The program's own values in a checkpoint, by name: `{{"epoch", 3}, {"step", 120}}`.
class Metadata : public std::map<std::string, MetadataValue> {
 public:
  using std::map<std::string, MetadataValue>::map;
  Metadata(std::map<std::string, MetadataValue> entries) : map(std::move(entries)) {}  // NOLINT: implicit
  /// Errors: IndexError with the key and the existing keys.
  const MetadataValue& at(const std::string& key) const;
};

}  // namespace apex::amp

namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

namespace apex::amp::detail {

/// The contents of a torch archive: values and nested archives by key.
struct ArchiveTree {
  std::map<std::string, c10::IValue> values;
  std::map<std::string, ArchiveTree> children;
};

/// The nested archive `key` in `tree`; null if there is none.
ArchiveTree* child_of(ArchiveTree& tree, const std::string& key);
const ArchiveTree* child_of(const ArchiveTree& tree, const std::string& key);

/// The contents that `save` writes, read back on the CPU. Needs memory for two copies of the tensors while it runs: one in the
/// archive's bytes, one in the result.
ArchiveTree tree_of(const std::function<void(torch::serialize::OutputArchive&)>& save);

/// Calls `load` with an archive of `tree`. Tensors of the archive share memory with those of the tree; nothing is copied.
void load_tree(const ArchiveTree& tree, const std::function<void(torch::serialize::InputArchive&)>& load);

/// torch::optim archives name parameters by their addresses. Replaces each address by the parameter's position, counted over
/// all groups, where a parameter that is listed twice counts once. So the same state always gives the same bytes. Drops state
/// of parameters in no group, as torch does when it loads. An archive of another layout stays as it is.
void name_params_by_position(ArchiveTree& optimizer);

}  // namespace apex::amp::detail
