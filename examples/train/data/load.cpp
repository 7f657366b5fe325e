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

}  // namespace

std::string data_folder(const DataConfig& config) { return config.dir.empty() ? data_root() + "/" + config.set : config.dir; }

DataSplit load_data(const DataConfig& config) {
  const auto dir = data_folder(config);
  if (config.set == "mnist") {
    return load_mnist(dir);
  }
  return config.set == "cifar10" ? load_cifar10(dir) : load_digits(dir);
}

}  // namespace train
