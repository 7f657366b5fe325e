#include <apex_cpp/amp/tensors/parameter_names.h>

#include <mutex>

namespace apex::amp::detail {
namespace {

struct NewestNames {
  std::mutex mutex;
  std::shared_ptr<const ParameterNames> names;
};

NewestNames& newest_names() {
  static NewestNames instance;
  return instance;
}

}  // namespace

std::shared_ptr<const ParameterNames> newest_parameter_names() {
  const std::lock_guard<std::mutex> lock(newest_names().mutex);
  return newest_names().names;
}

void set_newest_parameter_names(std::shared_ptr<const ParameterNames> names) {
  const std::lock_guard<std::mutex> lock(newest_names().mutex);
  newest_names().names = std::move(names);
}

}  // namespace apex::amp::detail
