// master_storage under amp: training, memory, overflow, checkpoints of any storage and level.
#include <apex_cpp/amp.h>
#include <apex_cpp/amp/checkpoint.h>
#include <apex_cpp/optimizers/detail/remainders.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;
namespace split = apex::optimizers::detail;
using namespace apex::optimizers;

struct NetImpl : nn::Module {
  NetImpl() {
    for (auto& param : parameters()) {
      const at::NoGradGuard no_grad;
      param.copy_(values(param.sizes(), param.numel()) * 0.5);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return second(norm(first(x).relu())); }
  nn::Linear first = register_module("first", nn::Linear(6, 16));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(16));
  nn::Linear second = register_module("second", nn::Linear(16, 3));
};
TORCH_MODULE(Net);

at::Tensor input_of(int64_t step) { return values({8, 6}, 1000 + step); }
at::Tensor loss_of(const at::Tensor& output, int64_t step) {
  return (output.to(at::kFloat) - values({8, 3}, 2000 + step)).square().mean();
}

amp::InitializeOptions silent() { return amp::InitializeOptions().verbosity(0); }

template <class Opt>
auto options_with(MasterStorage storage, double lr) {
  using Options = decltype(options_of(static_cast<const Opt*>(nullptr)));
  Options options(lr);
  options.weight_decay(0.01);
  return options.master_storage(storage);
}

// The storages of a class, besides float32.
template <class Opt>
std::vector<MasterStorage> storages_of() {
  std::vector<MasterStorage> storages = {MasterStorage::remainder16, MasterStorage::remainder8};
  if (std::is_same_v<Opt, FusedAdam>) storages.push_back(MasterStorage::stochastic);
  return storages;
}

template <class Opt = FusedAdam>
struct AmpRun {
  explicit AmpRun(MasterStorage storage, const std::string& level = "O5", double lr = 0.01) {
    Opt optimizer(net->parameters(), options_with<Opt>(storage, lr));
    auto [handle, opt] = amp::initialize(net, optimizer, level, silent());
    model = handle;
    by = std::make_unique<decltype(opt)>(std::move(opt));
  }

  void steps(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      by->zero_grad();
      amp::scale_loss(loss_of(model->forward(input_of(step)), step), *by).backward();
      by->step();
    }
  }

  // The float32 values that the run trains, wherever they are stored.
  std::vector<at::Tensor> masters() {
    std::vector<at::Tensor> all;
    for (const at::Tensor& param : amp::master_params(*by)) {
      const at::Tensor kept = by->kept_master_of(param);
      all.push_back((kept.defined() ? kept : param.detach().to(at::kFloat)).clone());
    }
    return all;
  }

  Net net;
  amp::Model<Net> model{nullptr};
  std::unique_ptr<amp::AmpOptimizer<Opt>> by;
};

// The same training by hand: float32 masters, a bfloat16 model, and a copy that rounds like the split.
TEST(MasterStorageUnderAmp, TrainsAThousandStepsWithTheBitsOfFloat32Masters) {
  AmpRun<> run(MasterStorage::remainder16);
  Net by_hand;
  by_hand->first->to(at::kBFloat16);
  by_hand->second->to(at::kBFloat16);
  std::vector<at::Tensor> masters;
  for (const at::Tensor& param : by_hand->parameters()) {
    masters.push_back(param.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
  }
  FusedAdam optimizer(masters, FusedAdamOptions(0.01).weight_decay(0.01));
  for (int64_t step = 0; step < 1000; ++step) {
    run.steps(step, step + 1);
    const auto params = by_hand->parameters();
    by_hand->zero_grad();
    const amp::disable_casts casts_off;
    const at::Tensor hidden = by_hand->first->forward(input_of(step).to(at::kBFloat16)).relu();
    const at::Tensor output = by_hand->second->forward(by_hand->norm->forward(hidden));
    loss_of(output, step).backward();
    for (size_t i = 0; i < params.size(); ++i) masters[i].mutable_grad() = params[i].grad().to(at::kFloat);
    optimizer.step();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].scalar_type() == at::kFloat ? void(params[i].copy_(masters[i])) : split::split_into(masters[i], params[i], {});
    }
    ASSERT_TRUE(same_bytes(run.masters(), masters)) << "step " << step;
  }
}

TEST(MasterStorageUnderAmp, TakesFourteenBytesAParameterOrLessWithItsGradient) {
  for (const auto& [storage, expected] : std::vector<std::pair<MasterStorage, int64_t>>{
           {MasterStorage::remainder16, 14}, {MasterStorage::remainder8, 13}, {MasterStorage::stochastic, 12}}) {
    AmpRun<> run(storage);
    run.steps(0, 1);
    const at::Tensor& weight = run.net->first->weight;
    const auto& state = static_cast<FusedAdamParamState&>(*run.by->state().at(weight.unsafeGetTensorImpl()));
    size_t bytes = weight.nbytes() + weight.grad().nbytes();
    for (const at::Tensor& tensor : {state.exp_avg, state.exp_avg_sq, state.remainder}) {
      if (tensor.defined()) bytes += tensor.nbytes();
    }
    EXPECT_FALSE(state.master_param.defined());
    EXPECT_EQ(static_cast<int64_t>(bytes), expected * weight.numel());
    EXPECT_TRUE(amp::master_params(*run.by)[0].is_same(weight));
  }
}

// The update of FusedLAMB takes 4 bytes beside float32 masters, and none beside remainders.
TEST(MasterStorageUnderAmp, OfLambNeedsNoMemoryForTheUpdate) {
  for (const auto& [storage, expected] : std::vector<std::pair<MasterStorage, size_t>>{
           {MasterStorage::float32, 20}, {MasterStorage::remainder16, 14}, {MasterStorage::remainder8, 13}}) {
    nn::Linear net(64, 64);
    FusedLAMB optimizer(net->parameters(), FusedLAMBOptions(0.01).materialize_master_grads(false).master_storage(storage));
    auto [model, opt] = amp::initialize(net, optimizer, "O5", silent());
    amp::scale_loss(model->forward(values({4, 64}, 2)).to(at::kFloat).square().mean(), opt).backward();
    opt.step();
    const at::Tensor stepped = opt.param_groups()[0].params()[0];
    const auto& state = static_cast<FusedLAMBParamState&>(*opt.state().at(stepped.unsafeGetTensorImpl()));
    size_t bytes = net->weight.nbytes() + net->weight.grad().nbytes();
    if (!stepped.is_same(net->weight)) bytes += stepped.nbytes();
    for (const at::Tensor& tensor : {state.exp_avg, state.exp_avg_sq, state.update, state.remainder})
      bytes += tensor.defined() ? tensor.nbytes() : 0;
    EXPECT_EQ(bytes, expected * static_cast<size_t>(net->weight.numel())) << name_of(storage);
  }
}

// The column "bytes a parameter" of the README's table of levels: a weight, its gradient, its master, and two moments.
TEST(BytesAParameter, AreThoseOfTheReadme) {
  const std::vector<std::pair<std::string, double>> levels = {{"O0", 16}, {"O1", 16}, {"O2", 16}, {"O3", 12},
                                                              {"O4", 16}, {"O5", 16}, {"O6", 16}};
  for (const auto& [level, expected] : levels) {
    nn::Linear net(64, 64);
    FusedAdam optimizer(net->parameters(), FusedAdamOptions(0.01).materialize_master_grads(false));
    auto [model, opt] = amp::initialize(net, optimizer, level, silent());
    opt.zero_grad();
    amp::scale_loss(model->forward(values({4, 64}, 2)).to(at::kFloat).square().mean(), opt).backward();
    opt.step();
    const at::Tensor stepped = opt.param_groups()[0].params()[0];
    const auto& state = static_cast<FusedAdamParamState&>(*opt.state().at(stepped.unsafeGetTensorImpl()));
    size_t bytes = net->weight.nbytes() + net->weight.grad().nbytes() + state.exp_avg.nbytes() + state.exp_avg_sq.nbytes();
    if (!stepped.is_same(net->weight)) bytes += stepped.nbytes() + (stepped.grad().defined() ? stepped.grad().nbytes() : 0);
    EXPECT_EQ(static_cast<double>(bytes) / static_cast<double>(net->weight.numel()), expected) << level;
  }
}

template <class Opt>
class RemaindersUnderAmp : public ::testing::Test {};

using Classes = ::testing::Types<FusedAdam, FusedLAMB, FusedLARS>;
TYPED_TEST_SUITE(RemaindersUnderAmp, Classes);

TYPED_TEST(RemaindersUnderAmp, AnOverflowChangesNoBit) {
  for (const MasterStorage storage : storages_of<TypeParam>()) {
    Net net;
    TypeParam optimizer(net->parameters(), options_with<TypeParam>(storage, 0.01));
    auto [model, opt] = amp::initialize(net, optimizer, "O5", silent().loss_scale("dynamic"));
    for (const bool overflows : {false, true}) {
      const auto before = copies_of(net->parameters());
      const std::string state = saved(opt);
      opt.zero_grad();
      amp::scale_loss(model->forward(input_of(1)).sum() * (overflows ? INFINITY : 1.0f), opt).backward();
      opt.step();
      EXPECT_EQ(amp::step_result(opt).skipped, overflows);
      EXPECT_EQ(same_bytes(copies_of(net->parameters()), before), overflows);
      EXPECT_EQ(saved(opt) == state, overflows);
    }
  }
}

TEST(MasterStorageUnderAmp, FloatSixteenLevelsAreAnError) {
  Net net;
  FusedAdam optimizer(net->parameters(), FusedAdamOptions(0.1).master_storage(MasterStorage::remainder8));
  const std::string text = message_of<c10::Error>([&] { (void)amp::initialize(net, optimizer, "O2", silent()); });
  EXPECT_NE(text.find("Use O5, or leave master_storage float32"), std::string::npos) << text;
  EXPECT_EQ(net->first->weight.scalar_type(), at::kFloat);
}

// State from before initialize belonged to float32 parameters.
TEST(MasterStorageUnderAmp, KeepsEarlierStateInFloat32) {
  Net net;
  FusedSGD optimizer(net->parameters(), FusedSGDOptions(0.1).momentum(0.9).master_storage(MasterStorage::remainder16));
  loss_of(net->forward(input_of(0)), 0).backward();
  optimizer.step();
  const auto momentum_of = [&](torch::optim::Optimizer& by) {
    return static_cast<FusedSGDParamState&>(*by.state().at(net->first->weight.unsafeGetTensorImpl())).momentum_buffer;
  };
  const at::Tensor before = momentum_of(optimizer).clone();
  auto [model, opt] = amp::initialize(net, optimizer, "O5", silent());
  EXPECT_TRUE(same_bytes(momentum_of(opt), before));
  opt.zero_grad();
  amp::scale_loss(loss_of(model->forward(input_of(1)), 1), opt).backward();
  opt.step();
  EXPECT_EQ(momentum_of(opt).scalar_type(), at::kFloat);
}

class File {
 public:
  explicit File(const char* name) : path(::testing::TempDir() + std::to_string(getpid()) + "_" + name) {}
  ~File() { std::remove(path.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string path;
};

TYPED_TEST(RemaindersUnderAmp, CheckpointsContinueWithTheSameBits) {
  for (const MasterStorage storage : storages_of<TypeParam>()) {
    const File file("master_storage.ckpt");
    AmpRun<TypeParam> run(storage);
    run.steps(0, 3);
    amp::save_checkpoint(file.path, run.model, *run.by);
    run.steps(3, 6);
    AmpRun<TypeParam> resumed(storage, "O5", /*lr=*/0.5);
    amp::load_checkpoint(file.path, resumed.model, *resumed.by);
    resumed.steps(3, 6);
    EXPECT_TRUE(same_bytes(resumed.masters(), run.masters()));
    EXPECT_TRUE(same_bytes(copies_of(resumed.net->parameters()), copies_of(run.net->parameters())));
  }
}

TEST(MasterStorageUnderAmp, TorchSaveOfModelAndHandleContinuesWithTheSameBits) {
  for (const MasterStorage storage : storages_of<FusedAdam>()) {
    AmpRun<> run(storage), resumed(storage, "O5", /*lr=*/0.5);
    run.steps(0, 3);
    resumed.steps(0, 1);
    std::stringstream model, optimizer;
    torch::save(run.net, model);
    torch::save(*run.by, optimizer);
    torch::load(resumed.net, model);
    torch::load(*resumed.by, optimizer);
    EXPECT_TRUE(same_bytes(resumed.masters(), run.masters()));
    run.steps(3, 6);
    resumed.steps(3, 6);
    EXPECT_TRUE(same_bytes(resumed.masters(), run.masters()));
  }
}

TEST(MasterStorageUnderAmp, FrozenParametersTakeNoMemoryAfterALoad) {
  for (const MasterStorage storage : storages_of<FusedAdam>()) {
    const File file("frozen.ckpt");
    AmpRun<> run(storage);
    const at::Tensor frozen = run.net->first->weight.set_requires_grad(false), trained = run.net->second->weight;
    run.steps(0, 2);
    amp::save_checkpoint(file.path, run.model, *run.by);
    amp::load_checkpoint(file.path, run.model, *run.by);
    EXPECT_FALSE(run.by->kept_master_of(frozen).defined()) << name_of(storage);
    EXPECT_TRUE(run.by->kept_master_of(trained).defined()) << name_of(storage);
  }
}

// torch::load would lose the bits that a BF16 parameter without its remainder does not have.
TEST(MasterStorageUnderAmp, AnOptimizersFileWithFloat32MastersIsAnErrorThatChangesNothing) {
  AmpRun<> before(MasterStorage::float32);
  before.steps(0, 2);
  for (const MasterStorage storage : storages_of<FusedAdam>()) {
    AmpRun<> after(storage);
    const std::string text = message_of<c10::Error>([&] { load(*after.by, saved(*before.by)); });
    EXPECT_NE(text.find("another master_storage"), std::string::npos) << text;
    EXPECT_TRUE(after.by->state().empty());
  }
}

// A checkpoint holds float32 masters, so any storage and any level load any other's.
TYPED_TEST(RemaindersUnderAmp, CheckpointsFitEveryStorageAndLevel) {
  struct Kind {
    MasterStorage storage;
    std::string level;
  };
  std::vector<Kind> kinds = {{MasterStorage::float32, "O0"}, {MasterStorage::float32, "O5"}};
  for (const MasterStorage storage : storages_of<TypeParam>()) kinds.push_back({storage, "O5"});
  for (const Kind& from : kinds) {
    for (const Kind& to : kinds) {
      SCOPED_TRACE(std::string(name_of(from.storage)) + " " + from.level + " to " + name_of(to.storage) + " " + to.level);
      const File file("any_storage.ckpt");
      AmpRun<TypeParam> run(from.storage, from.level);
      run.steps(0, 3);
      amp::save_checkpoint(file.path, run.model, *run.by);
      AmpRun<TypeParam> other(to.storage, to.level);
      other.steps(0, 1);
      amp::load_checkpoint(file.path, other.model, *other.by);
      const auto expected = run.masters(), loaded = other.masters();
      for (size_t i = 0; i < expected.size(); ++i) {
        at::Tensor bits = expected[i];
        if (to.storage == MasterStorage::remainder8 && other.by->kept_master_of(amp::master_params(*other.by)[i]).defined()) {
          const at::Tensor param = at::empty_like(bits, at::kBFloat16), rest = at::empty_like(bits, at::kChar);
          split::split_into(bits, param, rest);
          bits = split::joined(param, rest);
        }
        const bool rounds =
            to.storage == MasterStorage::stochastic && amp::master_params(*other.by)[i].scalar_type() == at::kBFloat16;
        EXPECT_TRUE(same_bytes(loaded[i], rounds ? bits.to(at::kBFloat16).to(at::kFloat) : bits)) << i;
      }
      other.steps(3, 4);
    }
  }
}

TEST(MasterStorageUnderAmp, WeightFilesHaveTheMasters) {
  const File file("masters.safetensors");
  AmpRun<> run(MasterStorage::remainder16), other(MasterStorage::remainder16);
  run.steps(0, 3);
  other.steps(0, 1);
  amp::save_safetensors(file.path, run.net, amp::SaveSafetensorsOptions().masters(true));
  amp::load_safetensors(file.path, other.net);
  EXPECT_TRUE(same_bytes(other.masters(), run.masters()));
}

// The first step makes the states; until then the optimizer keeps what the bfloat16 parameters lack.
TEST(MasterStorageUnderAmp, WeightFilesThatAreLoadedBeforeTheFirstStepHaveTheMasters) {
  const File file("before_the_first_step.safetensors");
  Net trained;
  amp::save_safetensors(file.path, trained);
  AmpRun<> run(MasterStorage::remainder16, "O5", /*lr=*/0);
  amp::load_safetensors(file.path, run.model);
  EXPECT_TRUE(same_bytes(run.masters(), copies_of(trained->parameters())));
  run.steps(0, 2);
  EXPECT_TRUE(same_bytes(run.masters(), copies_of(trained->parameters())));
}

TEST(MasterStorageUnderAmp, TorchSaveBeforeTheFirstStepHasTheMastersOfWeightFiles) {
  const File file("saved_before_the_first_step.safetensors");
  Net trained;
  amp::save_safetensors(file.path, trained);
  for (const MasterStorage storage : {MasterStorage::remainder16, MasterStorage::remainder8}) {
    AmpRun<> run(storage), resumed(storage);
    amp::load_safetensors(file.path, run.model);
    std::stringstream model, optimizer;
    torch::save(run.net, model);
    torch::save(*run.by, optimizer);
    torch::load(resumed.net, model);
    torch::load(*resumed.by, optimizer);
    EXPECT_TRUE(same_bytes(resumed.masters(), run.masters())) << name_of(storage);
    run.steps(0, 2);
    resumed.steps(0, 2);
    EXPECT_TRUE(same_bytes(resumed.masters(), run.masters())) << name_of(storage);
  }
}

// In the first step the average takes the place of the weights.
TEST(MasterStorageUnderAmp, ScheduleFreeBeginsAtTheMastersOfWeightFiles) {
  const File file("schedule_free.safetensors");
  Net trained;
  amp::save_safetensors(file.path, trained);
  const auto trained_with = [&](MasterStorage storage) {
    AmpRun<FusedScheduleFreeAdamW> run(storage);
    run.by->train();
    amp::load_safetensors(file.path, run.model);
    run.steps(0, 1);
    return run.masters();
  };
  EXPECT_TRUE(same_bytes(trained_with(MasterStorage::remainder16), trained_with(MasterStorage::float32)));
}

template <class Use>
void with_run(const std::string& level, const FusedAdamOptions& options, int64_t steps, const Use& use) {
  Net net;
  FusedAdam adam(net->parameters(), options);
  auto [model, opt] = amp::initialize(net, adam, level, silent().loss_scale(1.0));
  for (int64_t step = 0; step < steps; ++step) {
    opt.zero_grad();
    amp::scale_loss(loss_of(model->forward(input_of(step)), step), opt).backward();
    opt.step();
  }
  use(net, model, opt);
  amp::reset();
}

// Masters that the optimizer keeps in its state, as at O3, and amp's masters are one and the same in a file.
TEST(MasterStorageUnderAmp, MastersOfMasterWeightsReachOtherLevelsAndBack) {
  const File file("own_masters.ckpt");
  const FusedAdamOptions plain(0.01);
  const auto own = FusedAdamOptions(0.01).capturable(true).master_weights(true);
  const auto own_master = [](auto& opt, const at::Tensor& param) {
    return static_cast<FusedAdamParamState&>(*opt.state().at(param.unsafeGetTensorImpl())).master_param;
  };
  at::Tensor expected;
  with_run("O3", own, 3, [&](auto& net, auto& model, auto& opt) {
    expected = own_master(opt, net->first->weight).clone();
    amp::save_checkpoint(file.path, model, opt);
  });
  ASSERT_FALSE(same_bytes(expected, expected.to(at::kHalf).to(at::kFloat)));
  with_run("O0", plain, 1, [&](auto& net, auto& model, auto& opt) {
    amp::load_checkpoint(file.path, model, opt);
    EXPECT_TRUE(same_bytes(net->first->weight.detach(), expected));
  });
  with_run("O2", plain, 1, [&](auto&, auto& model, auto& opt) {
    amp::load_checkpoint(file.path, model, opt);
    EXPECT_TRUE(same_bytes(amp::master_params(opt)[0].detach(), expected));
    amp::save_checkpoint(file.path, model, opt);
  });
  with_run("O3", own, 1, [&](auto& net, auto& model, auto& opt) {
    amp::load_checkpoint(file.path, model, opt);
    EXPECT_TRUE(same_bytes(own_master(opt, net->first->weight), expected));
  });
}

// Weights that are loaded into a model reach the remainders of the optimizer that has them.
TEST(MasterStorageUnderAmp, WeightFilesReachTheMastersOfEveryOptimizer) {
  const File file("two_optimizers.safetensors");
  const auto options = FusedAdamOptions(0.01).master_storage(MasterStorage::remainder16);
  struct Run {
    explicit Run(const FusedAdamOptions& options)
        : first(net->first->parameters(), options), second(net->second->parameters(), options) {}
    Net net;
    FusedAdam first, second;
  };
  Run from(options), to(options);
  std::vector<std::vector<at::Tensor>> masters;
  for (Run* run : {&from, &to}) {
    auto [model, opts] = amp::initialize(run->net, std::tie(run->first, run->second), "O5", silent());
    auto& [first, second] = opts;
    for (int64_t step = 0; step < (run == &from ? 3 : 1); ++step) {
      run->net->zero_grad();
      amp::scale_loss(loss_of(model->forward(input_of(step)), step), {first, second}).backward();
      first.step();
      second.step();
    }
    run == &from ? amp::save_safetensors(file.path, run->net, amp::SaveSafetensorsOptions().masters(true))
                 : void(amp::load_safetensors(file.path, run->net));
    masters.push_back({first.kept_master_of(run->net->first->weight), second.kept_master_of(run->net->second->weight)});
    amp::reset();
  }
  EXPECT_TRUE(same_bytes(masters[1], masters[0]));
}

}  // namespace
}  // namespace test
