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

void freeze_second(Layers& model, bool frozen) {
  for (const at::Tensor& param : model->second->parameters()) param.set_requires_grad(!frozen);
}

// The masters and moments of a file, as an optimizer that stores them in float32 loads them.
Tensors contents_of(const std::string& path, const char* level) {
  Layers model;
  auto adam = fused_adam(model);
  auto [net, opt] = amp::initialize(model, adam, level, small_scale());
  amp::load_checkpoint(path, net, opt);
  Tensors contents;
  for (const at::Tensor& master : amp::master_params(opt)) {
    const auto& state = static_cast<const optimizers::FusedAdamParamState&>(*opt.state().at(master.unsafeGetTensorImpl()));
    contents.insert(contents.end(), {master.detach(), state.exp_avg, state.exp_avg_sq});
  }
  return contents;
}

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

TEST_P(Elastic, KeepsTheStateOfParametersThatAreFrozenWhenItIsLoaded) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  Layers reference, first;
  auto one = fused_adam(reference, GetParam());
  auto [one_net, one_opt] = amp::initialize(reference, one, GetParam().level, small_scale());
  train(one_net, one_opt, 0, 3);
  if (rank() == 0) amp::save_checkpoint(folder.file("fused"), one_net, one_opt);
  auto adam = sharded_adam(first, group, GetParam());
  auto [first_net, first_opt] = amp::initialize(first, adam, GetParam().level, small_scale());
  train(first_net, first_opt, 0, 3, group);
  amp::save_checkpoint(folder.file("sharded"), first_net, first_opt);

  Layers alone, model;
  freeze_second(alone, true);
  freeze_second(model, true);
  auto alone_adam = fused_adam(alone, GetParam());
  auto [alone_net, alone_opt] = amp::initialize(alone, alone_adam, GetParam().level, small_scale());
  amp::load_checkpoint(folder.file("fused"), alone_net, alone_opt);
  train(alone_net, alone_opt, 3, 5);
  if (rank() == 0) amp::save_checkpoint(folder.file("fused later"), alone_net, alone_opt);
  auto resumed = sharded_adam(model, group, GetParam());
  auto [net, opt] = amp::initialize(model, resumed, GetParam().level, small_scale());
  amp::load_checkpoint(folder.file("sharded"), net, opt);
  train(net, opt, 3, 5, group);
  amp::save_checkpoint(folder.file("sharded later"), net, opt);
  EXPECT_TRUE(same_bytes(contents_of(folder.file("sharded later"), GetParam().level),
                         contents_of(folder.file("fused later"), GetParam().level)));

  freeze_second(alone, false);
  freeze_second(model, false);
  train(alone_net, alone_opt, 5, 7);
  train(net, opt, 5, 7, group);
  EXPECT_TRUE(same_bytes(net->parameters(), alone_net->parameters()));

  Layers from_shards;
  freeze_second(from_shards, true);
  auto fused = fused_adam(from_shards, GetParam());
  auto [fused_net, fused_opt] = amp::initialize(from_shards, fused, GetParam().level, small_scale());
  amp::load_checkpoint(folder.file("sharded"), fused_net, fused_opt);
  train(fused_net, fused_opt, 3, 5);
  freeze_second(from_shards, false);
  train(fused_net, fused_opt, 5, 7);
  EXPECT_TRUE(same_bytes(fused_net->parameters(), alone_net->parameters()));
  wait_for_all();
}

INSTANTIATE_TEST_SUITE_P(DistributedFusedAdamCheckpoint, Elastic,
                         ::testing::Values(Storage{"O0"}, Storage{"O2"}, Storage{"O5"},
                                           Storage{"O5", MasterStorage::remainder16},
                                           Storage{"O5", MasterStorage::remainder8, MomentStorage::int8}),
                         [](const auto& test) { return test.param.name(); });

TEST(DistributedFusedAdamCheckpoint, WeightsThatAreLoadedAloneReachTheShardedMasters) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  torch::manual_seed(5);
  Layers trained;
  if (rank() == 0) amp::save_safetensors(folder.file("weights"), trained);
  wait_for_all();
  for (const Storage storage : {Storage{"O5"}, Storage{"O5", MasterStorage::remainder16}}) {
    for (const int steps : {0, 1}) {
      Layers model;
      auto adam = sharded_adam(model, group, storage);
      auto [net, opt] = amp::initialize(model, adam, "O5", small_scale());
      train(net, opt, 0, steps, group);
      amp::load_safetensors(folder.file("weights"), net);
      const std::string message = message_of(
          [&, &n = net] { amp::save_safetensors(folder.file("x"), n, amp::SaveSafetensorsOptions().masters(true)); });
      EXPECT_NE(message.find("was called for a sharded optimizer"), std::string::npos) << message;
      amp::save_checkpoint(folder.file("sharded"), net, opt);

      Layers last;
      auto fused = fused_adam(last);
      auto [last_net, last_opt] = amp::initialize(last, fused, "O5", small_scale());
      amp::load_checkpoint(folder.file("sharded"), last_net, last_opt);
      EXPECT_TRUE(same_bytes(amp::master_params(last_opt), trained->parameters())) << storage.name() << " " << steps;
      wait_for_all();
    }
  }
}

// Masters take written weights in a step; a file has them before.
TEST(DistributedFusedAdamCheckpoint, AFileHasTheWeightsThatTheProgramWroteAfterTheLastStep) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  Layers model, last, plain;
  auto adam = sharded_adam(model, group, {"O5"});
  auto fused = fused_adam(last);
  auto [net, opt] = amp::initialize(model, adam, "O5", small_scale());
  auto [last_net, last_opt] = amp::initialize(last, fused, "O5", small_scale());
  train(net, opt, 0, 2, group);
  amp::save_checkpoint(folder.file("before"), net, opt);
  const Tensors exact = contents_of(folder.file("before"), "O5");
  for (const at::Tensor& param : net->parameters()) param.data().slice(0, 0, 1).fill_(0.3);
  amp::save_checkpoint(folder.file("after"), net, opt);
  amp::load_checkpoint(folder.file("after"), last_net, last_opt);
  amp::load_checkpoint(folder.file("after"), plain);
  const float written = at::full({}, 0.3, at::kBFloat16).item<float>();
  const auto masters = amp::master_params(last_opt);
  for (size_t i = 0; i < masters.size(); ++i) {
    at::Tensor want = exact[3 * i].clone();
    want.slice(0, 0, 1).fill_(written);
    EXPECT_TRUE(same_bytes(masters[i].detach(), want)) << i;
    EXPECT_TRUE(same_bytes(plain->parameters()[i].detach(), want)) << i;
  }
  wait_for_all();
}

// Such parameters otherwise get their places in the next pass.
TEST(DistributedFusedAdamCheckpoint, WeightsOfUnfrozenLayersThatAreLoadedAloneReachTheShardedMasters) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  Layers trained;
  for (auto& param : trained->parameters()) param.data().add_(1.0f / 3);
  if (rank() == 0) amp::save_safetensors(folder.file("weights"), trained);
  wait_for_all();
  for (const Storage storage : {Storage{"O5"}, Storage{"O5", MasterStorage::remainder16}}) {
    Layers model;
    freeze_second(model, true);
    auto adam = sharded_adam(model, group, storage);
    auto [net, opt] = amp::initialize(model, adam, "O5", small_scale());
    train(net, opt, 0, 1, group);
    freeze_second(model, false);
    amp::load_safetensors(folder.file("weights"), net);
    amp::save_checkpoint(folder.file("sharded"), net, opt);

    Layers last;
    auto fused = fused_adam(last);
    auto [last_net, last_opt] = amp::initialize(last, fused, "O5", small_scale());
    amp::load_checkpoint(folder.file("sharded"), last_net, last_opt);
    EXPECT_TRUE(same_bytes(amp::master_params(last_opt), trained->parameters())) << storage.name();
    train(net, opt, 1, 2, group);  // the ranks agree on the new places
    wait_for_all();
  }
}

// No rank has a part of a parameter that was never trained.
TEST(DistributedFusedAdamCheckpoint, LayersThatWereFrozenFromTheStartAreTrainedAfterALoad) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  Layers first, model;
  for (Layers* each : {&first, &model}) freeze_second(*each, true);
  auto adam = sharded_adam(first, group), resumed = sharded_adam(model, group);
  auto [first_net, first_opt] = amp::initialize(first, adam, "O5", small_scale());
  auto [net, opt] = amp::initialize(model, resumed, "O5", small_scale());
  train(first_net, first_opt, 0, 2, group);
  amp::save_checkpoint(folder.file("frozen"), first_net, first_opt);
  amp::load_checkpoint(folder.file("frozen"), net, opt);
  const Tensors loaded = copies_of(model->second->parameters());
  for (Layers* each : {&first, &model}) freeze_second(*each, false);
  train(first_net, first_opt, 2, 4, group);
  train(net, opt, 2, 4, group);
  EXPECT_FALSE(same_bytes(model->second->parameters(), loaded));
  EXPECT_TRUE(same_bytes(net->parameters(), first_net->parameters()));
  wait_for_all();
}

TEST(DistributedFusedAdamCheckpoint, WeightFilesNeedNoMastersWhereTheLevelHasNone) {
  const Folder folder;
  const auto group = parallel::default_process_group();
  for (const char* level : {"O0", "O1", "O4"}) {
    Layers model, plain;
    auto adam = sharded_adam(model, group);
    auto [net, opt] = amp::initialize(model, adam, level, small_scale());
    train(net, opt, 0, 1, group);
    if (rank() == 0) {
      amp::save_safetensors(folder.file("weights"), net, amp::SaveSafetensorsOptions().masters(true));
      amp::load_safetensors(folder.file("weights"), plain);
      EXPECT_TRUE(same_bytes(plain->parameters(), net->parameters())) << level;
    }
    wait_for_all();
  }
}

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
