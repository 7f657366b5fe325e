#pragma once
// The names that code blocks of the documentation assume: a model, an optimizer, a batch and a loss.
#include <apex_cpp/amp.h>
#include <apex_cpp/normalization.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/amp/support.h"
#include "tests/examples/scratch.h"

// What a page declares hides the fixture's, and it shows results that it does not use.
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-result"

namespace pages {

namespace amp = apex::amp;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(4, 16));
    fc2 = register_module("fc2", torch::nn::Linear(16, 3));
  }
  Tensor forward(const Tensor& x) { return fc2(torch::relu(fc1(x))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Net);

struct Batch {
  Tensor data, target;
};
using DataLoader = std::vector<Batch>;

/// The environment of a world of one process, as torchrun sets it.
struct Launched {
  Launched() {
    for (const auto& [name, value] :
         {std::pair{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "0"}})
      ::setenv(name, value, 1);
  }
  ~Launched() { apex::parallel::destroy_process_group(); }
};

/// Every test starts in an empty folder.
class Page : public apex::test::AmpTest {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    std::filesystem::current_path(folder_.path());
  }
  void TearDown() override {
    std::filesystem::current_path(before_);
    AmpTest::TearDown();
  }

  Net model;
  torch::optim::SGD optimizer{model->parameters(), 0.1};
  Tensor x = torch::randn({8, 4});
  Tensor y = torch::randint(3, {8});
  DataLoader loader{{x, y}, {x, y}};

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
  Scratch folder_;
};

}  // namespace pages
