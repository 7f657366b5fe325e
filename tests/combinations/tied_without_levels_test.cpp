// Tied parameters without amp::initialize: the fused optimizers, LARC, FP16_Optimizer, GradScaler and the lists of masters.
#include <apex_cpp/fp16_utils.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "tests/amp/saved.h"
#include "tests/combinations/tied.h"

namespace apex::test::combinations {
namespace {

using fp16_utils::FP16_Optimizer;
using fp16_utils::FP16_OptimizerOptions;

std::string kind_name(const ::testing::TestParamInfo<Kind>& test) { return test.param.name; }

Tied tied_model() {
  torch::manual_seed(7);
  return Tied();
}
Tensor tied_loss(Tied& model, int step) { return model->forward(tied_input(step)).square().mean(); }

/// Calls train(model, optimizer) for both listings, and expects the same parameters, states and buffers of both.
template <class Train>
void expect_trains_as_listed_once(const Kind& kind, const Train& train) {
  std::vector<std::string> bytes;
  for (const auto listing : {Listing::once, Listing::all}) {
    Tied model = tied_model();
    const OptimizerPtr optimizer = kind.make(params_of(*model, listing));
    // In half, to which FP16_Optimizer casts the model. Buffers change in each pass.
    const auto weight = [&] { return model->fc->weight.detach().to(torch::kHalf, /*non_blocking=*/false, /*copy=*/true); };
    const Tensor before = weight();
    train(model, *optimizer);
    bytes.push_back(bytes_of(*model) + bytes_of(*optimizer));
    EXPECT_FALSE(torch::equal(weight(), before));
  }
  EXPECT_EQ(bytes[1], bytes[0]);
}

class TiedFused : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, TiedFused, ::testing::ValuesIn(own_kinds()), kind_name);

TEST_P(TiedFused, TrainsAsIfListedOnce) {
  expect_trains_as_listed_once(GetParam(), [](Tied& model, torch::optim::Optimizer& optimizer) {
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      tied_loss(model, i).backward();
      optimizer.step();
    }
  });
}

TEST_P(TiedFused, ParametersPushedIntoTheGroupAreListedOnce) {
  expect_trains_as_listed_once(GetParam(), [](Tied& model, torch::optim::Optimizer& optimizer) {
    for (int i = 0; i < 3; ++i) {
      if (i == 1) optimizer.param_groups()[0].params().push_back(model->head->weight);
      optimizer.zero_grad();
      tied_loss(model, i).backward();
      optimizer.step();
    }
  });
}

// Step 1 overflows; gradients of step 2 are unscaled and clipped by the program.
TEST_P(TiedFused, TrainsAsIfListedOnceWithAGradScaler) {
  expect_trains_as_listed_once(GetParam(), [](Tied& model, torch::optim::Optimizer& optimizer) {
    amp::GradScaler scaler("cpu", 128.0);
    for (int i = 0; i < 4; ++i) {
      optimizer.zero_grad();
      scaler.scale(tied_loss(model, i) * (i == 1 ? INFINITY : 1.0)).backward();
      if (i == 2) {
        scaler.unscale_(optimizer);
        torch::nn::utils::clip_grad_norm_(optimizer.param_groups()[0].params(), 0.05);
      }
      scaler.step(optimizer);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), i == 0 ? 128.0 : 64.0);
    }
  });
}

TEST_P(TiedFused, LoadsFilesWithOrWithoutDuplicates) {
  for (const auto listing : {Listing::once, Listing::all}) {
    Tied model = tied_model(), resumed_model = tied_model();
    auto optimizer = GetParam().make(params_of(*model, Listing::all));
    auto resumed = GetParam().make(params_of(*resumed_model, listing));
    const auto step = [](Tied& net, torch::optim::Optimizer& opt, int i) {
      opt.zero_grad();
      tied_loss(net, i).backward();
      opt.step();
    };
    step(model, *optimizer, 0);
    restore(*resumed, saved(*optimizer));
    restore(resumed_model, saved(model));
    step(model, *optimizer, 2);
    step(resumed_model, *resumed, 2);
    EXPECT_EQ(bytes_of(*resumed_model) + bytes_of(*resumed), bytes_of(*model) + bytes_of(*optimizer));
  }
}

// All but those with modes, which FP16_Optimizer refuses (fp16_utils/fp16_optimizer_test.cpp).
std::vector<Kind> fp16_kinds() {
  std::vector<Kind> kinds;
  for (const Kind& kind : all_kinds()) {
    if (kind.name.rfind("FusedScheduleFreeAdamW", 0) != 0) kinds.push_back(kind);
  }
  return kinds;
}

class TiedFp16 : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, TiedFp16, ::testing::ValuesIn(fp16_kinds()), kind_name);

// Over float16 layers with a batch norm in float32; step 1 overflows, step 2 is clipped.
TEST_P(TiedFp16, Fp16OptimizerTrainsAsIfListedOnce) {
  expect_trains_as_listed_once(GetParam(), [](Tied& model, torch::optim::Optimizer& optimizer) {
    fp16_utils::convert_network(*model, torch::kHalf);
    FP16_Optimizer fp16(optimizer, FP16_OptimizerOptions().verbose(false).dynamic_loss_scale(true).dynamic_loss_args(
                                       fp16_utils::DynamicLossArgs().init_scale(128.0)));
    EXPECT_EQ(fp16.fp16_params().size(), 2u);
    EXPECT_EQ(fp16.param_groups()[0].params().size(), kTiedParams);
    for (int i = 0; i < 4; ++i) {
      fp16.zero_grad();
      fp16.backward(model->forward(tied_input(i).to(torch::kHalf)).to(torch::kFloat).square().mean() *
                    (i == 1 ? INFINITY : 1.0));
      if (i == 2) fp16.clip_master_grads(0.05);
      EXPECT_EQ(fp16.overflow(), i == 1);
      fp16.step();
    }
  });
}

class TiedTorch : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, TiedTorch, ::testing::ValuesIn(torch_kinds()), kind_name);

// The step of torch's own optimizers is torch's: the gradient is all that is divided once.
TEST_P(TiedTorch, AGradScalerDividesATiedGradientOnce) {
  Tied model = tied_model();
  const OptimizerPtr optimizer = GetParam().make(params_of(*model, Listing::all));
  tied_loss(model, 0).backward();
  std::vector<Tensor> expected;
  for (const Tensor& param : params_of(*model, Listing::once)) expected.push_back(param.grad().clone());
  optimizer->zero_grad();
  amp::GradScaler scaler("cpu", 128.0);
  model = tied_model();
  const OptimizerPtr again = GetParam().make(params_of(*model, Listing::all));
  scaler.scale(tied_loss(model, 0)).backward();
  scaler.unscale_(*again);
  const auto params = params_of(*model, Listing::once);
  // The scale is a power of two: not a bit is rounded differently.
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(torch::equal(params[i].grad(), expected[i])) << i;
}

TEST_P(TiedTorch, ResumesWithoutAmpFromACheckpoint) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("apex_cpp_tied_plain_" + std::to_string(::getpid()))).string();
  Tied model = tied_model(), resumed_model = tied_model();
  const OptimizerPtr optimizer = GetParam().make(params_of(*model, Listing::all)),
                     resumed = GetParam().make(params_of(*resumed_model, Listing::all));
  const auto step = [](Tied& net, torch::optim::Optimizer& opt, int i) {
    opt.zero_grad();
    tied_loss(net, i).backward();
    opt.step();
  };
  step(model, *optimizer, 0);
  amp::save_checkpoint(path, model, *optimizer);
  step(resumed_model, *resumed, 3);
  amp::load_checkpoint(path, resumed_model, *resumed);
  step(model, *optimizer, 1);
  step(resumed_model, *resumed, 1);
  EXPECT_EQ(bytes_of(*resumed_model) + bytes_of(*resumed), bytes_of(*model) + bytes_of(*optimizer));
  std::remove(path.c_str());
}

TEST(TiedLists, PrepParamListsListsEachOnce) {
  Tied model = tied_model();
  model->to(torch::kHalf);
  const auto [params, masters] = fp16_utils::prep_param_lists(*model);
  EXPECT_EQ(params.size(), kTiedParams);
  EXPECT_EQ(masters.size(), kTiedParams);
  const auto [flat_params, flat] = fp16_utils::prep_param_lists(*model, /*flat_master=*/true);
  EXPECT_EQ(flat_params.size(), kTiedParams);
  EXPECT_EQ(flat.at(0).numel(), 36 + 3 * 6);
}

TEST(TiedLists, AParameterInTwoGroupsIsAnError) {
  Tied model = tied_model();
  EXPECT_EQ(model->parameters().size(), kTiedListed);
  const std::vector<torch::optim::OptimizerParamGroup> groups = {model->fc->parameters(),
                                                                 std::vector<Tensor>{model->head->weight}};
  const auto expect_refused = [](const std::string& message) {
    EXPECT_TRUE(contains(message, "more than one parameter group"));
    EXPECT_TRUE(contains(message, "of shape [6, 6] is in groups 0 and 1"));
  };
  expect_refused(message_of([&] { optimizers::FusedAdam optimizer(groups); }));

  optimizers::FusedAdam grown(model->fc->parameters());
  expect_refused(message_of([&] { grown.add_param_group(groups[1]); }));
  EXPECT_EQ(grown.param_groups().size(), 1u);

  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.1));
  expect_refused(message_of([&] { parallel::LARC<torch::optim::SGD> larc(sgd); }));
  expect_refused(message_of([&] { FP16_Optimizer fp16(sgd, FP16_OptimizerOptions().verbose(false)); }));
  EXPECT_EQ(sgd.param_groups().size(), 2u) << "nothing was moved";
}

}  // namespace
}  // namespace apex::test::combinations
