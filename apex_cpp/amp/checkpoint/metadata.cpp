#include <apex_cpp/amp/checkpoint/metadata.h>

#include <c10/util/Exception.h>

namespace apex::amp {
namespace {

constexpr const char* kKinds[] = {"a truth value", "a whole number", "a number", "a text"};  // in the variant's order

}  // namespace

template <class T>
const T& MetadataValue::get(const char* wanted) const {
  const T* held = std::get_if<T>(&value_);
  TORCH_CHECK_TYPE(held, "The checkpoint's metadata has ", kKinds[value_.index()], key_.empty() ? "" : " under '", key_,
                   key_.empty() ? "" : "'", " where ", wanted, " was asked for.");
  return *held;
}

bool MetadataValue::to_bool() const { return get<bool>(kKinds[0]); }

int64_t MetadataValue::to_int() const { return get<int64_t>(kKinds[1]); }

double MetadataValue::to_double() const {
  if (const auto* whole = std::get_if<int64_t>(&value_)) return static_cast<double>(*whole);
  return get<double>(kKinds[2]);
}

const std::string& MetadataValue::to_string() const { return get<std::string>(kKinds[3]); }

bool operator==(const MetadataValue& a, const MetadataValue& b) { return a.value_ == b.value_; }

const MetadataValue& Metadata::at(const std::string& key) const {
  const auto found = find(key);
  if (found != end()) return found->second;
  std::string keys;
  for (const auto& [name, value] : *this) keys += (keys.empty() ? "'" : ", '") + name + "'";
  C10_THROW_ERROR(IndexError,
                  "The checkpoint's metadata has no '" + key + "'; it has " + (keys.empty() ? "nothing" : keys) + ".");
}

}  // namespace apex::amp
