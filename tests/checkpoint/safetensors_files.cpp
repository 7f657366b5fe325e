// The C++ side of safetensors_package_test.py: writes files for Python's safetensors package, and describes files that it
// wrote.
//   safetensors_files write FILE          writes a file with every dtype, and prints its description
//   safetensors_files write-model FILE    writes the weights of a model at O2, and prints their description
//   safetensors_files write-model-once FILE    the same, tied weights under one name
//   safetensors_files load-model FILE     loads the weights of a file into that model, and prints its weights
//   safetensors_files describe FILE...    prints the description of each file, or "error" and the reason
// A description has one line per entry, texts and data in hexadecimal, and an empty line at its end.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <apex_cpp/amp/checkpoint.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/amp/checkpoint/safetensors_header.h>
#include <apex_cpp/amp/initialize.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "tests/checkpoint/raw_safetensors.h"

namespace {

using apex::amp::detail::read_safetensors;
using apex::amp::detail::TensorFile;

std::string hex(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  std::string text = "x";  // so that an empty text is visible
  for (size_t i = 0; i < bytes; ++i) {
    for (const int digit : {from[i] >> 4, from[i] & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}
std::string hex(const std::string& text) { return hex(text.data(), text.size()); }

std::string description(const TensorFile& file) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : file.metadata) lines.push_back("metadata " + hex(key) + " " + hex(value));
  for (const auto& [name, tensor] : file.tensors) {
    std::string line = "tensor " + hex(name) + " " + apex::amp::detail::safetensors_name(tensor.scalar_type()) + " [";
    for (const int64_t size : tensor.sizes()) line += std::to_string(size) + ",";
    lines.push_back(line + "] " + hex(tensor.const_data_ptr(), tensor.nbytes()));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text + "\n";
}

TensorFile sample() {
  TensorFile file;
  file.metadata = {{"format", "pt"}, {"\xc3\xa4 \"key\"", "a\nb\\"}, {"", ""}};
  unsigned char next = 0;
  for (const auto dtype : apex::test::all_safetensors_dtypes()) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {5}, {2, 3}, {0, 4}, {1, 2, 1, 3}}) {
      if (shape.empty() && dtype == c10::ScalarType::Float4_e2m1fn_x2) continue;
      const at::Tensor tensor = at::empty(shape, at::TensorOptions(dtype));
      auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
      for (size_t i = 0; i < tensor.nbytes(); ++i, next += 37) bytes[i] = dtype == at::kBool ? next & 1 : next;
      file.tensors.emplace_back(std::string("\xe2\x82\xac.") + c10::toString(dtype) + std::to_string(file.tensors.size()),
                                tensor);
    }
  }
  return file;
}

/// A linear layer that shares another layer's weight.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const at::Tensor& tied) : weight(register_parameter("weight", tied)) {
    bias = register_parameter("bias", at::zeros({tied.size(0)}));
  }
  at::Tensor weight, bias;
};

/// Net of safetensors_package_test.py.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    head = register_module("head", std::make_shared<TiedImpl>(embedding->weight));
    register_module("fc", fc);
    register_module("bn", bn);
    register_module("embedding", embedding);
  }
  at::Tensor forward(const at::Tensor& x) { return bn->forward(fc->forward(x)); }
  torch::nn::Linear fc{4, 3};
  torch::nn::BatchNorm1d bn{3};
  torch::nn::Embedding embedding{5, 4};
  std::shared_ptr<TiedImpl> head;
};
TORCH_MODULE(Net);

/// The model at O2: its parameters are 16-bit, its files FP32.
template <class F>
void with_model(const F& f) {
  at::manual_seed(7);
  Net model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = apex::amp::initialize(model, optimizer, "O2", apex::amp::InitializeOptions().verbosity(0));
  f(net);
}

void write_model(const std::string& path, bool tied_once) {
  with_model(
      [&](auto& net) { apex::amp::save_safetensors(path, net, apex::amp::SaveSafetensorsOptions().tied_once(tied_once)); });
  std::cout << description(read_safetensors(path));
}

void load_model(const std::string& path) {
  with_model([&](auto& net) {
    apex::amp::load_safetensors(path, net);
    apex::amp::save_safetensors(path + ".again", net);
  });
  std::cout << description(read_safetensors(path + ".again"));
}

void describe(const std::string& path) {
  try {
    std::cout << description(read_safetensors(path));
  } catch (const c10::Error& error) {
    std::cout << "error " << hex(std::string(error.what_without_backtrace())) << "\n\n";
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() == 2 && words[0] == "write") {
    apex::amp::detail::write_safetensors(words[1], sample());
    std::cout << description(sample());
  } else if (words.size() == 2 && (words[0] == "write-model" || words[0] == "write-model-once")) {
    write_model(words[1], words[0] == "write-model-once");
  } else if (words.size() == 2 && words[0] == "load-model") {
    load_model(words[1]);
  } else if (words.size() > 1 && words[0] == "describe") {
    c10::SetStackTraceFetcher([] { return std::string(); });
    for (size_t i = 1; i < words.size(); ++i) describe(words[i]);
  } else {
    std::cerr << "usage: safetensors_files write FILE | write-model FILE | write-model-once FILE | load-model FILE | describe "
                 "FILE...\n";
    return 2;
  }
}
