#include <apex_cpp/amp/checkpoint/metadata.h>

#include <c10/util/Exception.h>

namespace apex::amp {
namespace {

constexpr const char* kKinds[] = {"a truth value", "a whole number", "a number", "a text"};  // in the variant's order

template <class T>
const T& get(const MetadataValue::Variant& value, const char* wanted) {
  const T* held = std::get_if<T>(&value);
  TORCH_CHECK_TYPE(held, "The checkpoint's metadata has ", kKinds[value.index()], " where ", wanted, " was asked for.");
  return *held;
}

}  // namespace

bool MetadataValue::to_bool() const { return get<bool>(value_, kKinds[0]); }

int64_t MetadataValue::to_int() const { return get<int64_t>(value_, kKinds[1]); }

double MetadataValue::to_double() const {
  if (const auto* whole = std::get_if<int64_t>(&value_)) return static_cast<double>(*whole);
  return get<double>(value_, kKinds[2]);
}

const std::string& MetadataValue::to_string() const { return get<std::string>(value_, kKinds[3]); }

bool operator==(const MetadataValue& a, const MetadataValue& b) { return a.value_ == b.value_; }

}  // namespace apex::amp
