#include <apex_cpp/amp/training_state/training_file_json.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace apex::amp::detail {
namespace {

constexpr double kLargestCount = 9007199254740992.0;  // 2^53: doubles have every whole number up to here
constexpr const char* kWriteAgain = ". Write the file again, with amp::save_for_python or Python's apex_cpp.training_state.";

// A short text for messages. Lists and objects may be deep, and are not written.
std::string shown_json(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.dump().substr(0, 40);
}

}  // namespace

void StateValue::refuse(const std::string& expected) const {
  C10_THROW_ERROR(Error, "its '" + path_ + "' is " + shown_json(value_) + ", expected " + expected + kWriteAgain);
}

StateValue StateValue::member(const std::string& key) const {
  if (!value_.is_object()) refuse("an object");
  const auto found = value_.find(key);
  TORCH_CHECK(found != value_.end(), "it has no '", path_.empty() ? key : path_ + "/" + key, "'", kWriteAgain);
  return {*found, path_.empty() ? key : path_ + "/" + key};
}

void StateValue::check_keys(const std::initializer_list<const char*>& allowed) const {
  if (!value_.is_object()) refuse("an object");
  for (const auto& item : value_.items()) {
    const bool known = std::find(allowed.begin(), allowed.end(), item.key()) != allowed.end();
    TORCH_CHECK(known, "its '", path_, "' has the unknown entry '", item.key().substr(0, 80), "'", kWriteAgain);
  }
}

size_t StateValue::size() const {
  if (!value_.is_array()) refuse("a list");
  return value_.size();
}

double StateValue::number() const {
  if (!value_.is_number() || !std::isfinite(value_.get<double>())) refuse("a finite number");
  return value_.get<double>();
}

bool StateValue::flag() const {
  if (!value_.is_boolean()) refuse("true or false");
  return value_.get<bool>();
}

std::string StateValue::text() const {
  if (!value_.is_string()) refuse("a text");
  return value_.get<std::string>();
}

int64_t StateValue::count(int64_t lowest) const {
  const double number = value_.is_number() ? value_.get<double>() : -1.0;
  const bool fits = number >= static_cast<double>(lowest) && number <= kLargestCount && number == std::floor(number);
  if (!fits) refuse("a whole number of at least " + std::to_string(lowest));
  return static_cast<int64_t>(number);
}

}  // namespace apex::amp::detail
