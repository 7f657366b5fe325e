#include "data/load.h"

#include <cstdlib>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

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

// The same in every run, so that accuracies of different runs compare.
void add_noise(Dataset& set, const std::vector<double>& deviations, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto channels = at::tensor(deviations, at::kFloat).view({1, -1, 1, 1});
  const auto noise = at::randn(set.images.sizes(), generator) * channels;
  set.images = (set.images.to(at::kFloat) + noise).round_().clamp_(0, 255).to(at::kByte);
}

// A network gets (pixel - mean) / deviation: what makes that `scale` times as large, and `offset` more.
void shift(DataSplit& data, double scale, double offset) {
  for (size_t channel = 0; channel < data.mean.size(); ++channel) {
    data.std_dev[channel] /= scale;
    data.mean[channel] -= offset * data.std_dev[channel];
  }
}

}  // namespace

std::string data_folder(const DataConfig& config) { return config.dir.empty() ? data_root() + "/" + config.set : config.dir; }

DataSplit load_data(const DataConfig& config) {
  auto data = load_files(config.set, data_folder(config));
  data.image_size = config.image_size;
  if (config.noise > 0) {
    auto deviations = data.std_dev;
    for (auto& deviation : deviations) deviation *= config.noise;
    add_noise(data.train, deviations, 1);
    add_noise(data.test, deviations, 2);
  }
  shift(data, config.scale, config.offset);
  return data;
}

}  // namespace train
