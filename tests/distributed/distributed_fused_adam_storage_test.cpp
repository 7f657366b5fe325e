// Shards in few bytes: master_storage and moment_storage of DistributedFusedAdam, against FusedAdam and against float32
// masters.
#include "tests/distributed/ranks.h"

#include <gtest/gtest.h>

#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers/detail/remainders.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/distributed/sharded_support.h"

namespace apex::testing::sharded {
namespace {

using optimizers::FusedAdam;
using optimizers::MasterStorage;
using optimizers::MomentStorage;

Tensors sums_over(const parallel::ProcessGroup& group, const Tensors& params, int step) {
  Tensors sums;
  for (size_t i = 0; i < params.size(); ++i) {
    at::Tensor sum = grad_of(params[i], i, 0, step);
    for (int other = 1; other < group->getSize(); ++other) sum = sum + grad_of(params[i], i, other, step);
    sums.push_back(sum);
  }
  return sums;
}

void step_alone(FusedAdam& optimizer, const Tensors& params, const Tensors& grads) {
  for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = grads[i];
  optimizer.step();
}

Tensors leaf_copies(const Tensors& params) {
  Tensors copies = copies_of(params);
  for (at::Tensor& copy : copies) copy.requires_grad_();
  return copies;
}

// A step of float32 masters, rounded to bfloat16 as remainders round.
Tensors rounded_away(const Tensors& masters) {
  Tensors params;
  for (const at::Tensor& master : masters) {
    params.push_back(at::empty_like(master, at::kBFloat16));
    optimizers::detail::split_into(master, params.back(), {});
  }
  return params;
}

// What an archive holds for each parameter with state: both moments and the master, if there is one. All float32.
std::vector<Tensors> contents_of(const std::string& archive, const Tensors& params) {
  const Tensors copies = leaf_copies(params);
  FusedAdam reader(copies, of_one_process().capturable(true).master_weights(true));  // which keeps loaded masters
  load(reader, archive);
  std::vector<Tensors> contents;
  for (const at::Tensor& copy : copies) {
    const auto found = reader.state().find(copy.unsafeGetTensorImpl());
    if (found == reader.state().end()) continue;
    const auto& state = static_cast<const optimizers::FusedAdamParamState&>(*found->second);
    contents.push_back({state.exp_avg, state.exp_avg_sq});
    if (state.master_param.defined()) contents.back().push_back(state.master_param);
  }
  return contents;
}

// None on other ranks than rank 0, whose archives have no states.
std::vector<Tensors> contents_of(const DistributedFusedAdam& optimizer, const Tensors& params) {
  const std::string archive = saved(optimizer);
  return optimizer.writes_file() ? contents_of(archive, params) : std::vector<Tensors>{};
}

bool same_contents(const std::vector<Tensors>& a, const std::vector<Tensors>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensors& one, const Tensors& other) { return same_bytes(one, other); });
}

TEST(DistributedFusedAdamStorage, RemaindersHaveTheBitsOfFloat32MastersAndOfFusedAdam) {
  for (const auto& group : first_ranks()) {
    if (!parallel::is_member(group)) continue;
    const Tensors params = make_params(at::kBFloat16), alone = leaf_copies(params);
    OneProcess exact(params, of_one_process());
    FusedAdam one(alone, of_one_process().master_storage(MasterStorage::remainder16));
    DistributedFusedAdam optimizer(params, small_buckets().process_group(group).store_param_remainders(true));
    for (int step = 0; step < 120; ++step) {
      backward(params, step);
      optimizer.step();
      const Tensors sums = sums_over(group, params, step);
      exact.step(sums);
      step_alone(one, alone, sums);
      ASSERT_TRUE(same_bytes(params, alone)) << "step " << step;
      ASSERT_TRUE(same_bytes(params, rounded_away(exact.masters()))) << "step " << step;
    }
    const auto contents = contents_of(optimizer, params);
    EXPECT_EQ(contents.size(), group->getRank() == 0 ? params.size() : 0);
    for (size_t i = 0; i < contents.size(); ++i) EXPECT_TRUE(same_bytes(contents[i][2], exact.masters()[i].detach()));
    {
      const at::NoGradGuard no_grad;
      params[3][17] = 0.5;  // the master keeps its remainder
      alone[3][17] = 0.5;
    }
    backward(params, 120);
    optimizer.step();
    step_alone(one, alone, sums_over(group, params, 120));
    EXPECT_TRUE(same_bytes(params, alone));
  }
}

TEST(DistributedFusedAdamStorage, Float32ParametersAndFloat32MastersKeepTheirStep) {
  Tensors params = make_params(at::kBFloat16);
  const Tensors native = make_params(at::kFloat, 5);
  OneProcess exact(params, of_one_process()), other(native, of_one_process());
  params.insert(params.end(), native.begin(), native.end());
  // As Apex wants the options.
  DistributedFusedAdam optimizer(
      params, small_buckets().store_param_remainders(true).store_params(false).param_sync_dtype(at::kBFloat16));
  const auto count = static_cast<int64_t>(params.size() - native.size());
  for (int step = 0; step < 4; ++step) {
    backward(params, step);
    optimizer.step();
    const Tensors sums = sums_of_grads(params, step);
    exact.step({sums.begin(), sums.begin() + count});
    other.step({sums.begin() + count, sums.end()});
  }
  EXPECT_TRUE(same_bytes({params.begin(), params.begin() + count}, rounded_away(exact.masters())));
  // Float32 parameters that are sent as bfloat16 have float32 masters.
  for (size_t i = 0; i < native.size(); ++i) {
    EXPECT_TRUE(same_bytes(native[i], other.masters()[i].detach().to(at::kBFloat16).to(at::kFloat)));
  }
}

// Random rounding depends on the place of a parameter among those with a gradient.
TEST(DistributedFusedAdamStorage, MomentsHaveTheBitsOfFusedAdamAtAnyNumberOfRanks) {
  for (const auto& group : first_ranks()) {
    if (!parallel::is_member(group)) continue;
    for (const auto storage : {MomentStorage::bfloat16, MomentStorage::int8}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const Tensors params = make_params(dtype);
        OneProcess one(params, of_one_process().moment_storage(storage));
        DistributedFusedAdam optimizer(params, small_buckets().process_group(group).moment_storage(storage));
        for (int step = 0; step < 8; ++step) {
          const size_t without = step % 3 == 1 ? 1 : params.size();
          backward(params, step, [&](size_t i) { return i != without; });
          optimizer.step();
          Tensors sums = sums_over(group, params, step);
          if (without < sums.size()) sums[without] = at::Tensor();
          one.step(sums);
          ASSERT_TRUE(same_bytes(params, one.params())) << name_of(storage) << ' ' << dtype << " step " << step;
        }
        auto contents = contents_of(optimizer, params);
        for (Tensors& each : contents) each.resize(2);
        if (optimizer.writes_file()) {
          EXPECT_TRUE(same_contents(contents, contents_of(saved(one.optimizer()), one.masters())));
        }
      }
    }
  }
}

struct Stored {
  MasterStorage masters;
  MomentStorage moments;
  double bytes;  // of a parameter, with 32 elements in each group of moments
};
const std::vector<Stored> kStorages = {
    {MasterStorage::float32, MomentStorage::float32, 12},      {MasterStorage::remainder16, MomentStorage::float32, 10},
    {MasterStorage::remainder8, MomentStorage::float32, 9},    {MasterStorage::float32, MomentStorage::bfloat16, 8},
    {MasterStorage::remainder16, MomentStorage::int8, 4.0625}, {MasterStorage::remainder8, MomentStorage::int8, 3.0625}};

DistributedFusedAdamOptions options_of(const Stored& storage, double lr = 0.01) {
  return small_buckets(lr).master_storage(storage.masters).moment_storage(storage.moments);
}

TEST(DistributedFusedAdamStorage, RanksTogetherKeepTheBytesOfOneProcess) {
  for (const Stored& storage : kStorages) {
    const Tensors params = {eighths({41, 32}, 1, at::kBFloat16).requires_grad_(),
                            eighths({64}, 2, at::kBFloat16).requires_grad_()};
    DistributedFusedAdam optimizer(params, options_of(storage));
    backward(params, 0);
    optimizer.step();
    at::Tensor total = at::full({1}, optimizer.state_bytes(), at::kLong);
    parallel::all_reduce(parallel::default_process_group(), total, "summing");
    EXPECT_EQ(total.item<double>(), storage.bytes * 1376) << name_of(storage.masters) << ' ' << name_of(storage.moments);
  }
}

// Archives hold float32 masters and moments, whatever the storage.
TEST(DistributedFusedAdamStorage, ArchivesFitEveryStorage) {
  const auto some = [](size_t i) { return i != 5; };  // parameter 5 has no state
  for (const Stored& from : kStorages) {
    const Tensors params = make_params(at::kBFloat16);
    DistributedFusedAdam optimizer(params, options_of(from));
    for (int step = 0; step < 3; ++step) {
      backward(params, step, some);
      optimizer.step();
    }
    const std::string archive = from_rank_0(saved(optimizer));
    for (const Stored& to : kStorages) {
      DistributedFusedAdam reader(leaf_copies(params), options_of(to, 0.5).bucket_cap_mb(1));
      load(reader, archive);
      const auto now = contents_of(from_rank_0(saved(reader)), params), before = contents_of(archive, params);
      const bool keeps_masters = to.masters == from.masters || to.masters != MasterStorage::remainder8;
      const bool keeps_moments = to.moments == from.moments || to.moments == MomentStorage::float32;
      ASSERT_EQ(now.size(), before.size());
      for (size_t i = 0; i < now.size(); ++i) {
        ASSERT_EQ(now[i].size(), before[i].size()) << i;
        if (now[i].empty()) continue;  // parameter 5
        ASSERT_EQ(now[i].size(), 3u) << i;
        EXPECT_TRUE(!keeps_moments || (same_bytes(now[i][0], before[i][0]) && same_bytes(now[i][1], before[i][1]))) << i;
        EXPECT_TRUE(!keeps_masters || same_bytes(now[i][2], before[i][2])) << i;
      }
    }
  }
}

TEST(DistributedFusedAdamStorage, TakesOverTheRemaindersOfFusedAdam) {
  const Tensors alone = make_params(at::kBFloat16);
  const auto options = of_one_process().master_storage(MasterStorage::remainder16);
  FusedAdam one(alone, options);
  for (int step = 0; step < 3; ++step) step_alone(one, alone, sums_of_grads(alone, step));
  const Tensors params = leaf_copies(alone);
  DistributedFusedAdam optimizer(params, small_buckets(0.5).store_param_remainders(true));
  load(optimizer, saved(one));
  for (int step = 3; step < 6; ++step) {
    backward(params, step);
    optimizer.step();
    step_alone(one, alone, sums_of_grads(alone, step));
  }
  EXPECT_TRUE(same_bytes(params, alone));
  DistributedFusedAdam exact(leaf_copies(alone), small_buckets());
  const std::string text = message_of([&] { load(exact, saved(one)); });
  EXPECT_NE(text.find("Parameter 0 of group 0"), std::string::npos) << text;
  EXPECT_NE(text.find("amp::save_checkpoint, which fits any"), std::string::npos) << text;
}

// A checkpoint of float32 masters has parameters that were rounded to even.
TEST(DistributedFusedAdamStorage, AMasterInTheMiddleRoundsTheParameterOnAllRanks) {
  const Tensors params = make_params(at::kBFloat16);
  DistributedFusedAdam optimizer(params, small_buckets().store_param_remainders(true));
  const at::Tensor middle = at::full_like(params[3], 1 + 0x1p-8, at::kFloat);
  const at::NoGradGuard no_grad;
  params[3].fill_(1);
  optimizer.load_master(params[3], middle);
  EXPECT_TRUE(same_bytes(params[3], at::full_like(params[3], 1 + 0x1p-7)));
  const auto& state =
      static_cast<const optimizers::FusedAdamParamState&>(*optimizer.state().at(params[3].unsafeGetTensorImpl()));
  EXPECT_TRUE(same_bytes(state.remainder, at::full_like(state.remainder, -0x8000)));
  // As amp loads a model alone.
  EXPECT_FALSE(optimizer.load_kept_master(params[0], at::ones_like(params[0], at::kFloat))) << "no state yet";
  EXPECT_TRUE(optimizer.load_kept_master(params[3], at::full_like(middle, 3 + 0x1p-20)));
  EXPECT_TRUE(same_bytes(params[3], at::full_like(params[3], 3)));
  EXPECT_TRUE(same_bytes(state.remainder, at::full_like(state.remainder, 4)));
}

// They are their own masters.
TEST(DistributedFusedAdamStorage, Float32ParametersKeepNoMastersThatAreLoaded) {
  const Tensors halves = make_params(at::kHalf), params = make_params(at::kFloat);
  DistributedFusedAdam with_masters(halves, small_buckets()), optimizer(params, small_buckets());
  backward(halves, 0);
  with_masters.step();
  backward(params, 0);
  optimizer.step();
  const int64_t moments_alone = optimizer.state_bytes();
  load(optimizer, from_rank_0(saved(with_masters)));
  EXPECT_EQ(optimizer.state_bytes(), moments_alone);
  for (const at::Tensor& param : params) optimizer.load_master(param, at::ones_like(param, at::kFloat));
  EXPECT_EQ(optimizer.state_bytes(), moments_alone);
}

TEST(DistributedFusedAdamStorage, WrongCombinationsAreErrors) {
  const Tensors params = make_params(at::kHalf), before = copies_of(params);
  DistributedFusedAdam optimizer(params, small_buckets().store_param_remainders(true));
  backward(params, 0);
  const std::string text = message_of([&] { optimizer.step(); });
  EXPECT_NE(text.find("Parameter 0 of group 0"), std::string::npos) << text;
  EXPECT_NE(text.find("has dtype Half, and master_storage remainder16 is for bfloat16"), std::string::npos) << text;
  EXPECT_TRUE(same_bytes(params, before));
  const auto half = small_buckets().master_storage(MasterStorage::remainder8).param_sync_dtype(at::kHalf);
  const std::string sent = message_of([&] { DistributedFusedAdam(make_params(at::kBFloat16), half); });
  EXPECT_NE(sent.find("master_storage remainder8 needs bfloat16 as param_sync_dtype, got Half"), std::string::npos) << sent;
  const auto twice = small_buckets().moment_storage(MomentStorage::int8).dtype(at::kHalf);
  const std::string moments = message_of([&] { DistributedFusedAdam(make_params(at::kFloat), twice); });
  EXPECT_NE(moments.find("dtype Half and moment_storage int8 both choose"), std::string::npos) << moments;
  const auto differs = small_buckets().store_param_remainders(rank() == 1);
  const std::string other = message_of([&] { DistributedFusedAdam(make_params(at::kBFloat16), differs); });
  EXPECT_NE(other.find("master_storage remainder16"), std::string::npos) << other;
  torch::nn::Linear model(6, 4);
  DistributedFusedAdam sharded(model->parameters(), small_buckets().store_param_remainders(true));
  const auto options = amp::InitializeOptions().verbosity(0);
  const std::string level = message_of([&] { auto handles = amp::initialize(model, sharded, "O2", options); });
  EXPECT_NE(level.find("trains float16 parameters"), std::string::npos) << level;
}

TEST(DistributedFusedAdamStorage, AStepThatAmpSkipsChangesNoBit) {
  torch::nn::Linear model(33, 7);
  DistributedFusedAdam sharded(model->parameters(), options_of(kStorages.back()));
  auto [net, opt] = amp::initialize(model, sharded, "O5", amp::InitializeOptions().verbosity(0).loss_scale("dynamic"));
  for (int step = 0; step < 4; ++step) {
    const bool skipped = step == 2;
    const Tensors before = copies_of(net->parameters());
    const auto state = contents_of(opt, before);
    const double factor = skipped && rank() == world_size() - 1 ? std::numeric_limits<double>::infinity() : 1;
    { amp::scale_loss((net->forward(eighths({4, 33}, step)).to(at::kFloat) * factor).square().mean(), opt).backward(); }
    opt.step();
    EXPECT_EQ(amp::step_result(opt).skipped, skipped);
    EXPECT_EQ(same_bytes(copies_of(net->parameters()), before), skipped);
    EXPECT_EQ(same_contents(contents_of(opt, before), state), skipped || rank() != 0) << "only rank 0 gets the state";
  }
}

}  // namespace
}  // namespace apex::testing::sharded
