#include "tests/distributed/ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <apex_cpp/amp.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/distributed/sharded_support.h"

namespace apex::testing::sharded {
namespace {

using optimizers::MasterStorage;
using optimizers::MomentStorage;

struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(6, 5));
    second = register_module("second", torch::nn::Linear(6, 11));
  }
  at::Tensor forward(const at::Tensor& x) { return at::cat({first(x), second(x)}, 1); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Layers);

// A batch that 1, 2, 3 or 4 ranks share evenly. The sums of its gradients are exact in 16 bits.
constexpr int64_t kRows = 12;

// The loss of this rank's rows, or of all rows without a group.
template <class Net>
at::Tensor loss_of_rows(Net& net, int step, const parallel::ProcessGroup& group) {
  const int64_t first = group ? group->getRank() : 0, stride = group ? group->getSize() : 1;
  const at::Tensor x = eighths({kRows, 6}, step).slice(0, first, kRows, stride);
  const at::Tensor weights = eighths({kRows, 16}, step + 1000).slice(0, first, kRows, stride);
  return (net->forward(x).to(at::kFloat) * weights).sum();
}

template <class Net, class Opt>
void train(Net& net, Opt& opt, int from, int to, const parallel::ProcessGroup& group = {}) {
  for (int step = from; step < to; ++step) {
    opt.zero_grad();
    { amp::scale_loss(loss_of_rows(net, step, group), opt).backward(); }
    opt.step();
  }
}

// A level, and how the optimizers store masters and moments.
struct Storage {
  const char* level = "O0";
  MasterStorage masters = MasterStorage::float32;
  MomentStorage moments = MomentStorage::float32;

  std::string name() const { return std::string(level) + "_" + name_of(masters) + "_" + name_of(moments); }
};

amp::InitializeOptions small_scale() {
  amp::InitializeOptions options;
  options.verbosity(0).max_loss_scale(1024);
  return options;
}

DistributedFusedAdam sharded_adam(Layers& model, const parallel::ProcessGroup& group, const Storage& storage = {}) {
  return DistributedFusedAdam(model->parameters(), DistributedFusedAdamOptions(0.01)
                                                       .process_group(group)
                                                       .bucket_cap_mb(0.0001)
                                                       .average_grad_sync(false)
                                                       .master_storage(storage.masters)
                                                       .moment_storage(storage.moments));
}
optimizers::FusedAdam fused_adam(Layers& model, const Storage& storage = {}) {
  return optimizers::FusedAdam(model->parameters(), optimizers::FusedAdamOptions(0.01)
                                                        .materialize_master_grads(false)
                                                        .master_storage(storage.masters)
                                                        .moment_storage(storage.moments));
}

// A folder shared by all ranks; rank 0 removes it.
class Folder {
 public:
  Folder()
      : path_(from_rank_0(
            (std::filesystem::temp_directory_path() / ("apex_cpp_sharded_" + std::to_string(::getpid()))).string())) {
    std::filesystem::create_directories(path_);
  }
  // libtorch.so exports a copy of std::filesystem::remove_all that crashes.
  ~Folder() {
    if (rank() == 0) {
      EXPECT_EQ(std::system(("rm -rf '" + path_.string() + "'").c_str()), 0);
    }
  }
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void wait_for_all() { parallel::gather_strings(parallel::default_process_group(), "", "waiting for all ranks"); }

class Elastic : public ::testing::TestWithParam<Storage> {};

TEST_P(Elastic, ResumesBitwiseAtAnyNumberOfRanks) {
  const Folder folder;
  const auto groups = first_ranks();
  Layers reference;
  auto one = fused_adam(reference, GetParam());
  auto [one_net, one_opt] = amp::initialize(reference, one, GetParam().level, small_scale());
  train(one_net, one_opt, 0, 6);
  for (const auto& group : groups) {
    if (!parallel::is_member(group)) continue;
    Layers model;
    auto adam = sharded_adam(model, group, GetParam());
    auto [net, opt] = amp::initialize(model, adam, GetParam().level, small_scale());
    train(net, opt, 0, 3, group);
    amp::save_checkpoint(folder.file(std::to_string(group->getSize())), net, opt);
  }
  wait_for_all();
  for (size_t saved_at = 1; saved_at <= groups.size(); ++saved_at) {
    for (const auto& group : groups) {
      if (!parallel::is_member(group)) continue;
      Layers model;
      auto adam = sharded_adam(model, group, GetParam());
      auto [net, opt] = amp::initialize(model, adam, GetParam().level, small_scale());
      train(net, opt, 20, 21, group);
      amp::load_checkpoint(folder.file(std::to_string(saved_at)), net, opt);
      train(net, opt, 3, 6, group);
      ASSERT_TRUE(same_bytes(net->parameters(), one_net->parameters()))
          << GetParam().name() << ", saved at " << saved_at << " ranks, loaded at " << group->getSize();
      EXPECT_EQ(opt.steps_taken(), 6);
    }
  }
  wait_for_all();
}

TEST_P(Elastic, IsInterchangeableWithFusedAdams) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  Layers reference;
  auto one = fused_adam(reference, GetParam());
  auto [one_net, one_opt] = amp::initialize(reference, one, GetParam().level, small_scale());
  train(one_net, one_opt, 0, 3);
  if (rank() == 0) amp::save_checkpoint(folder.file("fused"), one_net, one_opt);
  train(one_net, one_opt, 3, 6);
  wait_for_all();

  Layers model;
  auto adam = sharded_adam(model, group, GetParam());
  auto [net, opt] = amp::initialize(model, adam, GetParam().level, small_scale());
  const auto loaded = amp::load_checkpoint(folder.file("fused"), net, opt);
  EXPECT_TRUE(loaded.notes.empty());
  train(net, opt, 3, 4, group);
  amp::save_checkpoint(folder.file("sharded"), net, opt);

  Layers last;
  auto fused = fused_adam(last, GetParam());
  auto [last_net, last_opt] = amp::initialize(last, fused, GetParam().level, small_scale());
  amp::load_checkpoint(folder.file("sharded"), last_net, last_opt);
  train(last_net, last_opt, 4, 6);
  EXPECT_TRUE(same_bytes(last_net->parameters(), one_net->parameters()));
  wait_for_all();
}

INSTANTIATE_TEST_SUITE_P(DistributedFusedAdamCheckpoint, Elastic,
                         ::testing::Values(Storage{"O0"}, Storage{"O2"}, Storage{"O5"},
                                           Storage{"O5", MasterStorage::remainder16},
                                           Storage{"O5", MasterStorage::remainder8, MomentStorage::int8}),
                         [](const auto& test) { return test.param.name(); });

TEST(DistributedFusedAdamCheckpoint, MakesMastersOfFloat32Weights) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  Layers reference;
  auto one = fused_adam(reference);
  auto [one_net, one_opt] = amp::initialize(reference, one, "O0", small_scale());
  train(one_net, one_opt, 0, 3);
  if (rank() == 0) amp::save_checkpoint(folder.file("float32"), one_net, one_opt);
  wait_for_all();
  Layers sharded_model, fused_model;
  auto adam = sharded_adam(sharded_model, group);
  auto fused = fused_adam(fused_model);
  auto [fused_net, fused_opt] = amp::initialize(fused_model, fused, "O2", small_scale());
  auto [net, opt] = amp::initialize(sharded_model, adam, "O2", small_scale());
  amp::load_checkpoint(folder.file("float32"), fused_net, fused_opt);
  amp::load_checkpoint(folder.file("float32"), net, opt);
  train(net, opt, 3, 6, group);
  train(fused_net, fused_opt, 3, 6);
  EXPECT_TRUE(same_bytes(net->parameters(), fused_net->parameters()));
  wait_for_all();
}

TEST(DistributedFusedAdamCheckpoint, WithoutAmpResumesFromOneFile) {
  const Folder folder;
  Layers model, resumed;
  const auto group = parallel::default_process_group();
  model->to(at::kHalf);
  resumed->to(at::kHalf);
  auto adam = sharded_adam(model, group), other = sharded_adam(resumed, group);
  const auto steps = [&](Layers& net, DistributedFusedAdam& optimizer, int from, int to) {
    for (int step = from; step < to; ++step) {
      const at::Tensor x = eighths({kRows, 6}, step, at::kHalf);
      net->forward(x).sum().backward();
      optimizer.step();
    }
  };
  steps(model, adam, 0, 3);
  amp::save_checkpoint(folder.file("plain"), model, adam);
  amp::load_checkpoint(folder.file("plain"), resumed, other);
  steps(model, adam, 3, 6);
  steps(resumed, other, 3, 6);
  EXPECT_TRUE(same_bytes(model->parameters(), resumed->parameters()));
}

TEST(DistributedFusedAdamCheckpoint, AWriteErrorOnRank0IsRaisedOnAllRanks) {
  Layers model;
  auto adam = sharded_adam(model, parallel::default_process_group());
  const std::string message = message_of([&] { amp::save_checkpoint("/proc/no/such/folder/file", model, adam); });
  EXPECT_NE(message.find("Rank 0 could not write"), std::string::npos) << message;
}

}  // namespace
}  // namespace apex::testing::sharded
