// Tied parameters under amp: an optimizer over `parameters()` trains, bit for bit, like one that lists each parameter once.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "tests/combinations/tied.h"

namespace apex::test::combinations {
namespace {

const auto kTiedLevels = ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6");

/// One program. Step 1 overflows, step 2 accumulates two passes and is clipped, step 3 has a pass whose unscaling is delayed.
class TiedProgram {
 public:
  TiedProgram(const Kind& kind, const std::string& level, Listing listing, uint64_t seed = 7) {
    amp::reset();
    torch::manual_seed(seed);
    model_ = Tied();
    optimizer = kind.make(params_of(*model_, listing));
    auto [net, opt] = amp::initialize(model_, optimizer, level, quiet().loss_scale("dynamic"));
    net_ = net;
    optimizer = std::move(opt);
    amp::loss_scaler().restore(128.0, 0);
  }

  void run(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      optimizer->zero_grad();
      model_->zero_grad();
      if (i == 2 || i == 3) backward(i + 10, amp::ScaleLossOptions().delay_unscale(i == 3));
      backward(i);
      if (i == 2) norm_ = amp::clip_grad_norm_(*optimizer, 0.05);
      optimizer->step();
      EXPECT_EQ(amp::step_result(*optimizer).skipped, i == 1);
    }
  }

  std::string bytes() { return bytes_of(*optimizer) + bytes_of(*model_) + " norm " + std::to_string(norm_); }
  double norm() const { return norm_; }
  // Not bytes(): each pass moves the running statistics.
  Tensor weight() const { return model_->fc->weight.detach().clone(); }
  void save(const std::string& path) const { amp::save_checkpoint(path, net_, optimizer); }
  void load(const std::string& path) { amp::load_checkpoint(path, net_, optimizer); }
  void load_model(const std::string& path) { amp::load_checkpoint(path, net_); }

  OptimizerPtr optimizer;

 private:
  void backward(int i, const amp::ScaleLossOptions& options = {}) {
    auto loss = net_->forward(tied_input(i)).square().mean();
    if (i == 1) loss = loss * INFINITY;
    auto scaled = amp::scale_loss(loss, *optimizer, options);
    scaled.backward();
    scaled.finish();
  }

  Tied model_{nullptr};
  amp::Model<Tied> net_{nullptr};
  double norm_ = 0;
};

class TiedAtLevel : public AmpTest, public ::testing::WithParamInterface<std::tuple<Kind, std::string>> {
 protected:
  TiedProgram program(Listing listing, uint64_t seed = 7) const {
    return TiedProgram(std::get<0>(GetParam()), std::get<1>(GetParam()), listing, seed);
  }
};
INSTANTIATE_TEST_SUITE_P(All, TiedAtLevel, ::testing::Combine(::testing::ValuesIn(all_kinds()), kTiedLevels),
                         [](const auto& test) { return std::get<0>(test.param).name + "_" + std::get<1>(test.param); });

TEST_P(TiedAtLevel, TrainsAsIfListedOnce) {
  auto once = program(Listing::once);
  const Tensor start = once.weight();
  once.run(0, 5);
  auto all = program(Listing::all);
  all.run(0, 5);
  EXPECT_EQ(all.bytes(), once.bytes());
  EXPECT_FALSE(torch::equal(all.weight(), start));
  EXPECT_GT(all.norm(), 0.05) << "clipped";
}

TEST_P(TiedAtLevel, MasterParamsListsEachOnce) {
  auto all = program(Listing::all);
  EXPECT_EQ(amp::master_params(*all.optimizer).size(), kTiedParams);
  all.run(0, 1);
  EXPECT_EQ(amp::master_params(*all.optimizer).size(), kTiedParams);
}

TEST_P(TiedAtLevel, ResumesFromACheckpointWithOrWithoutDuplicates) {
  const std::string path = (std::filesystem::temp_directory_path() / ("apex_cpp_tied_" + std::to_string(::getpid()))).string();
  for (const auto& [from, to] : {std::pair(Listing::all, Listing::once), std::pair(Listing::once, Listing::all)}) {
    auto saved = program(from);
    saved.run(0, 2);
    saved.save(path);
    saved.run(2, 4);
    auto resumed = program(to, /*seed=*/8);
    resumed.load(path);
    resumed.run(2, 4);
    EXPECT_EQ(resumed.bytes(), saved.bytes());
  }
  std::remove(path.c_str());
}

using TiedOverLevels = AmpTest;

std::string bytes_of_masters(torch::optim::Optimizer& optimizer) {
  std::string bytes;
  for (const Tensor& master : amp::master_params(optimizer)) bytes += bytes_of(master);
  return bytes;
}

// The file has a tied parameter's master under its first name.
TEST_F(TiedOverLevels, LoadsTakeAllBitsOfMastersUnderEveryName) {
  const std::string path = (std::filesystem::temp_directory_path() / ("apex_cpp_tied_" + std::to_string(::getpid()))).string();
  for (const std::string level : {"O2", "O5", "O6"}) {
    TiedProgram saved(own_kinds()[0], level, Listing::all);
    saved.run(0, 3);
    saved.save(path);
    const auto masters = bytes_of_masters(*saved.optimizer);
    for (const std::string to : {"O0", "O1", "O4", level.c_str()}) {
      TiedProgram resumed(own_kinds()[0], to, Listing::all, /*seed=*/8);
      resumed.load(path);
      EXPECT_EQ(bytes_of_masters(*resumed.optimizer), masters) << level << " to " << to;
      TiedProgram with_model(own_kinds()[0], to, Listing::all, /*seed=*/8);
      with_model.run(0, 1);
      with_model.load_model(path);
      EXPECT_EQ(bytes_of_masters(*with_model.optimizer), masters) << level << " to " << to << ", the model alone";
    }
  }
  std::remove(path.c_str());
}

// By the base class's add_param_group and by hand, which no handle sees.
TEST_F(TiedOverLevels, ParametersAddedLaterAreListedOnce) {
  for (const std::string level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    std::vector<std::string> bytes;
    for (const auto listing : {Listing::once, Listing::all}) {
      SCOPED_TRACE(level);
      amp::reset();
      torch::manual_seed(7);
      Tied model;
      OptimizerPtr optimizer = torch_kinds()[0].make(params_of(*model->bn, listing));
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
      const Tensor start = model->fc->weight.detach().clone();
      const auto step = [&, &net = net, &opt = opt](int i) {
        opt->zero_grad();
        { amp::scale_loss(net->forward(tied_input(i)).square().mean(), *opt).backward(); }
        opt->step();
      };
      step(0);
      opt->add_param_group({params_of(*model->fc, Listing::once)});
      if (listing == Listing::all) opt->param_groups()[1].params().push_back(model->head->weight);
      step(2);
      if (listing == Listing::all) opt->param_groups()[1].params().push_back(model->head->weight);
      step(3);
      EXPECT_EQ(amp::master_params(*opt).size(), kTiedParams);
      EXPECT_FALSE(torch::equal(model->fc->weight, start));
      bytes.push_back(bytes_of(*opt) + bytes_of(*model));
    }
    EXPECT_EQ(bytes[0], bytes[1]) << level;
  }
}

// Without masters, which LBFGS's closure forbids.
TEST_F(TiedOverLevels, LbfgsTrainsAsIfListedOnce) {
  for (const std::string level : {"O0", "O1", "O4"}) {
    std::vector<std::string> bytes;
    for (const auto listing : {Listing::once, Listing::all}) {
      amp::reset();
      torch::manual_seed(7);
      Tied model;
      torch::optim::LBFGS lbfgs(params_of(*model, listing), torch::optim::LBFGSOptions(0.1).max_iter(3));
      auto [net, opt] = amp::initialize(model, lbfgs, level, quiet());
      const Tensor start = model->fc->weight.detach().clone();
      for (int i = 2; i < 4; ++i) {
        opt.step([&, &net = net, &opt = opt] {
          opt.zero_grad();
          auto loss = net->forward(tied_input(i)).square().mean();
          loss.backward();
          return loss;
        });
      }
      EXPECT_FALSE(torch::equal(model->fc->weight, start)) << level;
      bytes.push_back(bytes_of(*model));
    }
    EXPECT_EQ(bytes[0], bytes[1]) << level;
  }
}

// As Python's optimizers have it.
TEST_F(TiedOverLevels, AParameterInTwoGroupsIsAnErrorAndChangesNothing) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    Tied model;
    const std::string before = bytes_of(*model);
    const std::vector<torch::optim::OptimizerParamGroup> groups = {params_of(*model->fc, Listing::all),
                                                                   std::vector<Tensor>{model->head->weight}};
    torch::optim::SGD two_groups(groups, torch::optim::SGDOptions(0.1));
    const std::string message = message_of([&] { (void)amp::initialize(model, two_groups, level, quiet()); });
    EXPECT_TRUE(contains(message, "more than one parameter group")) << level;
    EXPECT_TRUE(contains(message, "'fc.weight' is in groups 0 and 1")) << level;
    EXPECT_EQ(bytes_of(*model), before);
    EXPECT_EQ(two_groups.param_groups().size(), 2u);
  }
}

TEST_F(TiedOverLevels, AddingAParameterToASecondGroupIsAnError) {
  for (const char* level : {"O0", "O2"}) {
    Tied model;
    OptimizerPtr optimizer = torch_kinds()[0].make(params_of(*model, Listing::all));
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    { amp::scale_loss(net->forward(tied_input(0)).square().mean(), *opt).backward(); }
    opt->step();
    opt->param_groups().emplace_back(std::vector<Tensor>{model->fc->bias}, opt->defaults().clone());
    const std::string message = message_of([&, &opt = opt] { opt->step(); });
    EXPECT_TRUE(contains(message, "'fc.bias' is in groups 0 and 1")) << level;
  }
}

}  // namespace
}  // namespace apex::test::combinations
