// Memory that saving and loading a checkpoint need.
#include <apex_cpp/amp/checkpoint/archive.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <apex_cpp/amp/handles/amp_optimizer.h>

#include <functional>

#include "tests/amp/support.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace {

class CheckpointMemory : public AmpTest {};

bool has_masters(const torch::optim::Optimizer& optimizer) {
  const auto tree = amp::detail::tree_of([&](torch::serialize::OutputArchive& archive) { optimizer.save(archive); });
  return tree.children.count(amp::detail::kMastersKey) > 0;
}

TEST_F(CheckpointMemory, LoadingNeedsNoMoreMemoryThanTheFilesSize) {
  constexpr int64_t kLayers = 16, kWidth = 64;
  const auto memory = std::make_shared<amp::detail::TensorMemory>();
  const amp::detail::Counting counting(memory);
  const Folder folder;
  torch::nn::Sequential model;
  for (int64_t i = 0; i < kLayers; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  amp::scale_loss(net->forward(torch::ones({2, kWidth})).pow(2).mean(), opt).backward();
  opt.step();
  amp::save_checkpoint(folder / "file", net, opt);
  const auto file_bytes = static_cast<int64_t>(read_bytes(folder / "file").size());
  const int64_t one_parameter = kWidth * kWidth * 4;
  ASSERT_GT(file_bytes, 4 * kLayers * one_parameter) << "model, masters and two moments";
  const int64_t before = memory->live();
  memory->take_peak();
  amp::load_checkpoint(folder / "file", net, opt);
  const int64_t taken = memory->take_peak() - before;
  EXPECT_GT(taken, 4 * kLayers * one_parameter) << "nothing was counted";
  EXPECT_LT(taken, file_bytes + one_parameter);
}

TEST_F(CheckpointMemory, MastersFromBeforeALoadAreFreed) {
  constexpr int64_t kWidth = 64;
  const auto memory = std::make_shared<amp::detail::TensorMemory>();
  const amp::detail::Counting counting(memory);
  const Folder folder;
  torch::nn::Linear model(kWidth, kWidth);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  amp::scale_loss(net->forward(torch::ones({2, kWidth})).pow(2).mean(), opt).backward();
  opt.step();
  amp::save_checkpoint(folder / "run", net, opt);
  amp::save_safetensors(folder / "weights", net);
  torch::save(net, folder / "model");
  const std::vector<std::function<void()>> loads = {
      [&, &net = net] { torch::load(net, folder / "model"); },
      [&, &net = net] { amp::load_safetensors(folder / "weights", net); },
      [&, &net = net] { amp::load_checkpoint(folder / "run", net); },
      [&, &net = net, &opt = opt] { amp::load_checkpoint(folder / "run", net, opt); },
  };
  const int64_t before = memory->live();
  for (size_t i = 0; i < loads.size(); ++i) {
    loads[i]();
    EXPECT_LT(memory->live(), before + kWidth * kWidth) << "load " << i;
  }
}

TEST_F(CheckpointMemory, OnlyTheNamedOptimizerIsSavedWithoutMasters) {
  Training named("Adam", "O2"), other("Adam", "O2");
  named.run(0, 2);
  other.run(0, 2);
  {
    const amp::detail::SaveWithoutMasters guard(*named.optimizer);
    EXPECT_FALSE(has_masters(*named.optimizer));
    EXPECT_TRUE(has_masters(*other.optimizer));
    {
      const amp::detail::SaveWithoutMasters inner(*other.optimizer);
      EXPECT_FALSE(has_masters(*other.optimizer));
    }
    EXPECT_FALSE(has_masters(*named.optimizer));
  }
  EXPECT_TRUE(has_masters(*named.optimizer));
}

}  // namespace
}  // namespace apex::test
