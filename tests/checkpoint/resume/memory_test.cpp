// What a checkpoint takes in memory beside what is there.
#include <apex_cpp/amp/checkpoint/archive_tensors.h>
#include <apex_cpp/amp/handles/masters_key.h>
#include <apex_cpp/amp/handles/save_without_masters.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

#include "tests/amp/support.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace {

/// Counts the bytes of tensors on this thread, from before the first is made.
class TensorBytes {
 public:
  void restart() { count_->now = count_->most = 0; }
  /// Since `restart`, beyond what was there then.
  int64_t most() const { return count_->most; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    bool memoryProfilingEnabled() const override { return true; }
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { most = std::max(most, now += bytes); }
    int64_t now = 0, most = 0;
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, count_};
};

class CheckpointMemory : public AmpTest {};

bool has_masters(const torch::optim::Optimizer& optimizer) {
  const auto tree = amp::detail::tree_of([&](torch::serialize::OutputArchive& archive) { optimizer.save(archive); });
  return tree.children.count(amp::detail::kMastersKey) > 0;
}

TEST_F(CheckpointMemory, LoadingTakesNoMoreThanTheFileHas) {
  constexpr int64_t kLayers = 16, kWidth = 64;
  TensorBytes bytes;
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
  bytes.restart();
  amp::load_checkpoint(folder / "file", net, opt);
  EXPECT_GT(bytes.most(), 4 * kLayers * one_parameter) << "nothing was counted";
  EXPECT_LT(bytes.most(), file_bytes + one_parameter);
}

TEST_F(CheckpointMemory, OnlyTheOptimizerThatWasNamedIsSavedWithoutMasters) {
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
