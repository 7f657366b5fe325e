// Memory that runs out at any tensor of a pass, a step, a save, a load or `initialize`: the call fails, no weight has changed,
// or the error says so, and the call can be made again, or the remedy in the error be followed.
#include <apex_cpp/amp/checkpoint.h>
#include <apex_cpp/amp/doctor/step_observer.h>
#include <apex_cpp/optimizers.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <vector>

#include "tests/amp/saved.h"
#include "tests/amp/support.h"

// LibTorch's reader of archives never frees its table of entries if memory runs out while it reads them.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:mz_zip_reader_init\nleak:mz_zip_reader_read_central_dir\n";
}

namespace apex::test {
namespace {

/// LibTorch's CPU allocator, except that one allocation fails when a test wants it.
class ScarceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (left > 0 && --left == 0) throw std::bad_alloc();
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { inner_->copy_data(to, from, bytes); }

  static ScarceMemory& installed() {
    static ScarceMemory* const memory = [] {
      auto* made = new ScarceMemory;
      constexpr uint8_t kAboveTheDefault = 200;
      c10::SetCPUAllocator(made, kAboveTheDefault);
      return made;
    }();
    return *memory;
  }

  std::atomic<int> left{0};  // the allocation that fails, counted from now; 0: none

 private:
  c10::Allocator* inner_ = c10::GetCPUAllocator();
};

/// Makes the call with its `nth` allocation failing. The call's error; empty if it makes fewer allocations.
template <class Function>
std::string error_at(int nth, const Function& call) {
  ScarceMemory& memory = ScarceMemory::installed();
  memory.left = nth;
  const std::string error = message_of(call);
  EXPECT_EQ(error.empty(), memory.left != 0) << "allocation " << nth;
  memory.left = 0;
  return error;
}

using Call = std::function<void()>;
/// What a test can do with a training. `weights` has the bits of the model.
struct Controls {
  std::function<std::string()> weights;
  Call pass, save, load;
};
/// Makes a call of the training, the one with this index, in its own way.
using Around = std::function<void(int index, const Call& call, const Controls& controls)>;

/// The model's parameters that the optimizer can train, in one group, or in a group each.
template <class Optimizer>
std::vector<torch::optim::OptimizerParamGroup> groups_of(const torch::nn::Module& model, bool in_groups) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const at::Tensor& param : model.parameters()) {
    if (std::is_same_v<Optimizer, optimizers::Muon> && param.dim() != 2) continue;
    if (in_groups || groups.empty()) groups.emplace_back(std::vector<at::Tensor>());
    groups.back().params().push_back(param);
  }
  return groups;
}

// Gradients in another layout than the parameters are copied for the step.
void change_layouts(const std::vector<at::Tensor>& params) {
  for (at::Tensor param : params) {
    if (!param.grad().defined() || param.dim() != 2) continue;
    const at::Tensor grad = at::empty_strided(param.sizes(), {1, param.size(0)}, param.grad().options());
    param.mutable_grad() = grad.copy_(param.grad());
  }
}

/// The bits of model and optimizer after two steps. Calls 0 and 2 are passes, calls 1 and 3 steps.
template <class Optimizer, class Options>
std::string train(const std::string& level, const Options& options, bool in_groups, const Around& around) {
  amp::reset();
  torch::manual_seed(3);
  Mlp model;
  Optimizer optimizer(groups_of<Optimizer>(*model, in_groups), options);
  if constexpr (std::is_same_v<Optimizer, optimizers::FusedScheduleFreeAdamW>) optimizer.train();
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
  const std::string path = std::filesystem::path(::testing::TempDir()) / ("out_of_memory_" + level + ".safetensors");
  Controls controls;
  controls.weights = [&net = net] { return bytes_of(*net); };
  controls.pass = [in_groups, &net = net, &opt = opt] {
    opt.zero_grad();
    auto scaled = amp::scale_loss(net->forward(features()).square().mean(), opt);
    scaled.backward();
    scaled.finish();
    if (!in_groups) return;
    for (const auto& group : opt.param_groups()) change_layouts(group.params());
  };
  controls.save = [&, &net = net, &opt = opt] { amp::save_checkpoint(path, net, opt); };
  controls.load = [&, &net = net, &opt = opt] { amp::load_checkpoint(path, net, opt); };
  const Call step = [&opt = opt] { opt.step(); };
  for (const int turn : {0, 1}) {
    around(2 * turn, controls.pass, controls);
    around(2 * turn + 1, step, controls);
  }
  std::filesystem::remove(path);
  return bytes_of(*net) + bytes_of(opt);
}

/// Lets each allocation of the call fail, one in each training. Returns how many left an update in part.
template <class Optimizer, class Options>
int expect_undone(const std::string& level, const Options& options, int index, bool in_groups) {
  const auto expected = train<Optimizer>(level, options, in_groups, [](int, const Call& call, const auto&) { call(); });
  bool failed = true;
  int in_part = 0;
  for (int nth = 1; failed; ++nth) {
    const auto around = [&](int now, const Call& call, const Controls& controls) {
      if (now != index) return call();
      const auto before = controls.weights();
      if (in_groups) controls.save();
      const auto error = error_at(nth, call);
      failed = !error.empty();
      if (!failed) return;
      if (error.find("step() failed after it had updated a part of the parameters") != std::string::npos) {
        ASSERT_TRUE(in_groups) << error;
        ++in_part;
        controls.load();  // the remedy it names
        controls.pass();
      }
      EXPECT_EQ(controls.weights(), before) << "call " << index << ", allocation " << nth << ": " << error;
      call();
    };
    const auto bits = train<Optimizer>(level, options, in_groups, around);
    EXPECT_EQ(bits, expected) << "call " << index << ", allocation " << nth;
    if (nth == 1000) ADD_FAILURE() << "the call never ends", failed = false;
  }
  return in_part;
}

class OutOfMemory : public AmpTest, public ::testing::WithParamInterface<std::string> {
 protected:
  template <class Optimizer, class Options>
  void check(Options options, std::initializer_list<int> calls) {
    for (const bool apex_order : {true, false}) {
      options.materialize_master_grads(apex_order);
      for (const int index : calls) expect_undone<Optimizer>(GetParam(), options, index, /*in_groups=*/false);
    }
  }
  /// Returns how many failures of steps left an update in part.
  template <class Optimizer, class Options>
  int updates_in_part(const Options& options) {
    int count = 0;
    for (const int index : {1, 3}) count += expect_undone<Optimizer>(GetParam(), options, index, /*in_groups=*/true);
    return count;
  }
};

TEST_P(OutOfMemory, AtAnyTensorOfAPassOrAStep) {
  using namespace optimizers;
  check<FusedAdam>(FusedAdamOptions(1e-3), {0, 1, 2, 3});
  check<FusedSGD>(FusedSGDOptions(1e-2).momentum(0.9), {1, 3});
  check<FusedLAMB>(FusedLAMBOptions(1e-3), {1, 3});
  check<FusedNovoGrad>(FusedNovoGradOptions(1e-3), {1, 3});
  check<FusedAdagrad>(FusedAdagradOptions(1e-2), {1, 3});
  check<FusedLARS>(FusedLARSOptions(1e-2).momentum(0.9), {1, 3});
  check<FusedLion>(FusedLionOptions(1e-3), {1, 3});
  check<FusedScheduleFreeAdamW>(FusedScheduleFreeAdamWOptions(1e-3), {1, 3});
}

// Steps whose groups each take norms, or products, say when parameters are updated in part. The others have all memory before.
TEST_P(OutOfMemory, AtAnyTensorOfAStepOfSeveralGroups) {
  using namespace optimizers;
  EXPECT_GT(updates_in_part<FusedLAMB>(FusedLAMBOptions(1e-3)), 0);
  EXPECT_GT(updates_in_part<FusedNovoGrad>(FusedNovoGradOptions(1e-3)), 0);
  EXPECT_GT(updates_in_part<FusedLARS>(FusedLARSOptions(1e-2).momentum(0.9)), 0);
  EXPECT_GT(updates_in_part<Muon>(MuonOptions(1e-2)), 0);
  EXPECT_EQ(updates_in_part<FusedAdam>(FusedAdamOptions(1e-3)), 0);
  EXPECT_EQ(updates_in_part<FusedAdam>(FusedAdamOptions(1e-3).capturable(true)), 0);
  EXPECT_EQ(updates_in_part<FusedSGD>(FusedSGDOptions(1e-2).momentum(0.9)), 0);
  EXPECT_EQ(updates_in_part<FusedAdagrad>(FusedAdagradOptions(1e-2)), 0);
  EXPECT_EQ(updates_in_part<FusedLion>(FusedLionOptions(1e-3)), 0);
  EXPECT_EQ(updates_in_part<FusedScheduleFreeAdamW>(FusedScheduleFreeAdamWOptions(1e-3)), 0);
}

/// A model and an optimizer with state, before amp.
struct Untouched {
  Untouched() {
    model->forward(features()).square().mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::string bytes() { return bytes_of(*model) + bytes_of(optimizer); }
  auto initialize(const std::string& level) { return amp::initialize(model, optimizer, level, quiet()); }

  Mlp model;
  optimizers::FusedAdam optimizer{model->parameters(), optimizers::FusedAdamOptions(1e-3)};
};

/// The bits of model and optimizer after one more step.
template <class Handles>
std::string train_on(Handles& handles) {
  auto& [net, opt] = handles;
  opt.zero_grad();
  { amp::scale_loss(net->forward(features()).square().mean(), opt).backward(); }
  opt.step();
  return bytes_of(*net) + bytes_of(opt);
}

// An earlier training at O1 goes on with its session, and so does a new one, whose model and optimizer are made again.
TEST_P(OutOfMemory, AtAnyTensorOfInitialize) {
  std::string expected;
  bool in_part = false;
  for (int nth = 0;; ++nth) {
    amp::reset();
    torch::manual_seed(3);
    Untouched earlier, failing, again;
    auto handles = earlier.initialize("O1");
    const auto before = failing.bytes();
    const auto initialize = [&] {
      static_cast<void>(amp::initialize(failing.model, failing.optimizer, GetParam(), quiet().num_losses(2)));
    };
    const auto error = nth == 0 ? "" : error_at(nth, initialize);
    if (nth > 0 && error.empty()) break;
    EXPECT_EQ(amp::num_loss_scalers(), 1) << "allocation " << nth;
    EXPECT_EQ(torch::mm(features(), features().t()).scalar_type(), torch::kHalf) << "allocation " << nth;
    const bool says_so = error.find("amp::initialize failed after it had begun to cast") != std::string::npos;
    if (!says_so) {
      EXPECT_EQ(failing.bytes(), before) << "allocation " << nth;
    }
    in_part = in_part || says_so;
    const auto of_earlier = train_on(handles);
    auto new_handles = again.initialize(GetParam());
    const auto bits = of_earlier + train_on(new_handles);
    if (nth == 0) expected = bits;
    EXPECT_EQ(bits, expected) << "allocation " << nth;
    ASSERT_LT(nth, 1000);
  }
  EXPECT_TRUE(in_part);
}

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What a load has changed is complete once the file is loaded again.
TEST_P(OutOfMemory, AtAnyTensorOfASaveOrALoad) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / ("out_of_memory_" + GetParam());
  std::filesystem::create_directories(folder);
  const std::string path = folder / "checkpoint.safetensors", reference = folder / "reference.safetensors";
  Mlp model;
  optimizers::FusedAdam optimizer(model->parameters(), optimizers::FusedAdamOptions(1e-3));
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet());
  const auto pass_and_step = [&net = net, &opt = opt] {
    opt.zero_grad();
    { amp::scale_loss(net->forward(features()).square().mean(), opt).backward(); }
    opt.step();
  };
  const auto bytes = [&net = net, &opt = opt] { return bytes_of(*net) + bytes_of(opt); };
  pass_and_step();
  amp::save_checkpoint(path, net, opt);
  const auto old_file = bytes_of_file(path);
  const auto at_save = bytes();
  pass_and_step();
  amp::save_checkpoint(reference, net, opt);
  const auto state = bytes();
  const auto save = [&, &net = net, &opt = opt] { amp::save_checkpoint(path, net, opt); };
  for (int nth = 1; !error_at(nth, save).empty(); ++nth) {
    EXPECT_EQ(bytes_of_file(path), old_file) << "allocation " << nth;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2) << "allocation " << nth;
  }
  EXPECT_EQ(bytes_of_file(path), bytes_of_file(reference));
  std::ofstream(path, std::ios::binary) << old_file;
  EXPECT_EQ(bytes(), state);
  const auto load = [&, &net = net, &opt = opt] { amp::load_checkpoint(path, net, opt); };
  for (int nth = 1;; ++nth) {
    const auto error = error_at(nth, load);
    if (error.empty()) break;
    if (error.find("loaded in part") != std::string::npos) amp::load_checkpoint(reference, net, opt);  // the remedy it names
    EXPECT_EQ(bytes(), state) << "allocation " << nth << ": " << error;
  }
  EXPECT_EQ(bytes(), at_save);

  // torch::load: the load in part is undone by the other file.
  const auto archive = saved(net);
  const auto load_archive = [&, &net = net] { restore(net, archive); };
  const auto reload = [&, &net = net, &opt = opt] { amp::load_checkpoint(reference, net, opt); };
  const auto dtypes = [&net = net] {
    std::vector<c10::ScalarType> of_params;
    for (const at::Tensor& param : net->parameters()) of_params.push_back(param.scalar_type());
    return of_params;
  };
  reload();
  load_archive();
  const auto loaded = bytes();
  const auto dtypes_before = dtypes();
  reload();
  EXPECT_EQ(bytes(), state);
  for (int nth = 1; !error_at(nth, load_archive).empty(); ++nth) {
    EXPECT_EQ(dtypes(), dtypes_before) << "allocation " << nth;
    reload();
    EXPECT_EQ(bytes(), state) << "allocation " << nth;
    ASSERT_LT(nth, 1000);
  }
  EXPECT_EQ(bytes(), loaded);
  for (const std::string& file : {path, reference}) std::filesystem::remove(file);
  std::filesystem::remove(folder);
}

/// amp gives `save` float32 copies of all weights.
struct OwnFileImpl : torch::nn::Module {
  OwnFileImpl() : fc1(register_module("fc1", torch::nn::Linear(6, 4))), fc2(register_module("fc2", torch::nn::Linear(4, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return fc2(fc1(x)); }
  bool save(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    for (const at::Tensor& param : parameters()) {
      EXPECT_EQ(param.scalar_type(), torch::kFloat);
      file.write(static_cast<const char*>(param.const_data_ptr()), static_cast<std::streamsize>(param.nbytes()));
    }
    return file.good();
  }
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(OwnFile);

TEST_P(OutOfMemory, AtAnyTensorOfASaveOfTheClassItself) {
  const std::string path = std::filesystem::path(::testing::TempDir()) / ("own_file_" + GetParam());
  OwnFile model;
  auto net = amp::initialize(model, GetParam(), quiet());
  const auto dtype = net->fc1->weight.scalar_type();
  const auto before = bytes_of(*net);
  const auto save = [&] { EXPECT_TRUE(net->save(path)); };
  int failures = 0;
  while (!error_at(failures + 1, save).empty()) {
    ++failures;
    EXPECT_EQ(net->fc1->weight.scalar_type(), dtype) << "allocation " << failures;
    EXPECT_EQ(bytes_of(*net), before) << "allocation " << failures;
    ASSERT_LT(failures, 1000);
  }
  EXPECT_EQ(bytes_of(*net), before);
  EXPECT_GE(failures, dtype == torch::kFloat ? 0 : 4) << "a copy of each parameter";
  std::filesystem::remove(path);
}

// LibTorch catches the error, and reports no end of this call.
TEST(OutOfMemoryAtTheStart, OfAnObservedCallLosesThisCallAlone) {
  const at::Tensor x = at::ones({4});
  const auto observer = std::make_shared<amp::detail::StepObserver>();
  observer->start();
  ScarceMemory::installed().left = 1;  // the observer's copy of x
  x.tanh();
  EXPECT_EQ(ScarceMemory::installed().left.load(), 0);
  x.tanh();
  EXPECT_EQ(observer->take().size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(All, OutOfMemory, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
