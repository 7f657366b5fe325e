#include <apex_cpp/amp/tensors/parameter_names.h>

#include <mutex>

namespace apex::amp::detail {
namespace {

struct NewestNames {
  std::mutex mutex;
  std::shared_ptr<const ParameterNames> names;
};

NewestNames& newest() {
  static NewestNames instance;
  return instance;
}

}  // namespace

std::shared_ptr<const ParameterNames> newest_parameter_names() {
  const std::lock_guard<std::mutex> lock(newest().mutex);
  return newest().names;
}

void set_newest_parameter_names(std::shared_ptr<const ParameterNames> names) {
  const std::lock_guard<std::mutex> lock(newest().mutex);
  newest().names = std::move(names);
}

}  // namespace apex::amp::detail
