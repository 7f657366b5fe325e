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

/// A whole number, a number, a truth value or a text that a program keeps in a checkpoint beside the training state.
class MetadataValue {
 public:
  using Variant = std::variant<bool, int64_t, double, std::string>;

  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  MetadataValue(T value) : value_(held(value)) {}  // NOLINT: implicit, so that {{"epoch", 3}} is a Metadata
  MetadataValue(std::string value) : value_(std::move(value)) {}
  MetadataValue(const char* value) : value_(std::string(value)) {}

  /// Errors: TypeError that names the key, if it comes from a checkpoint, and what is held if it is of another kind. A whole
  /// number is a number too.
  bool to_bool() const;
  int64_t to_int() const;
  double to_double() const;
  const std::string& to_string() const;

  const Variant& variant() const { return value_; }
  /// For messages: the key that it was read from.
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

/// What a program keeps in a checkpoint by name: `{{"epoch", 3}, {"step", 120}}`.
class Metadata : public std::map<std::string, MetadataValue> {
 public:
  using std::map<std::string, MetadataValue>::map;
  Metadata(std::map<std::string, MetadataValue> entries) : map(std::move(entries)) {}  // NOLINT: implicit
  /// Errors: IndexError that names the key and those that are there.
  const MetadataValue& at(const std::string& key) const;
};

}  // namespace apex::amp

namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

namespace apex::amp::detail {

/// What a torch archive holds, by key: values, and the archives nested in it.
struct ArchiveTree {
  std::map<std::string, c10::IValue> values;
  std::map<std::string, ArchiveTree> children;
};

/// The archive of that name in `tree`; null where there is none.
ArchiveTree* child_of(ArchiveTree& tree, const std::string& key);
const ArchiveTree* child_of(const ArchiveTree& tree, const std::string& key);

/// What `save` writes, read back on the CPU. Takes memory for the tensors twice while it runs: for the archive's bytes, and for
/// the copies that are answered.
ArchiveTree tree_of(const std::function<void(torch::serialize::OutputArchive&)>& save);

/// Hands `load` an archive that holds `tree`. Its tensors share memory with the tree's, on their devices: no element is copied.
void load_tree(const ArchiveTree& tree, const std::function<void(torch::serialize::InputArchive&)>& load);

/// torch::optim archives name parameters by their addresses. Replaces each by the parameter's position, counted over all groups
/// and once for a parameter that stands there twice, so that the same state is always written alike. State of a parameter that
/// is in no group is dropped, as torch drops it when it loads. An archive of another layout stays as it is.
void name_params_by_position(ArchiveTree& optimizer);

}  // namespace apex::amp::detail
