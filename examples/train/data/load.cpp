#include "data/load.h"

#include <cstdlib>

#include "data/cifar10.h"
#include "data/digits.h"
#include "data/mnist.h"

namespace train {
namespace {

// The variable's value; empty where it is unset.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string data_root() {
  if (const auto root = variable("APEX_CPP_DATA"); !root.empty()) {
    return root;
  }
  if (const auto cache = variable("APEX_CPP_CACHE"); !cache.empty()) {
    return cache + "/data";
  }
  const auto caches = variable("XDG_CACHE_HOME");
  return (caches.empty() ? variable("HOME") + "/.cache" : caches) + "/apex_cpp/data";
}

DataSplit load_files(const std::string& set, const std::string& dir) {
  if (set == "mnist") {
    return load_mnist(dir);
  }
  return set == "cifar10" ? load_cifar10(dir) : load_digits(dir);
}

}  // namespace

std::string data_folder(const DataConfig& config) { return config.dir.empty() ? data_root() + "/" + config.set : config.dir; }

DataSplit load_data(const DataConfig& config) {
  auto data = load_files(config.set, data_folder(config));
  data.image_size = config.image_size;
  return data;
}

}  // namespace train
