// Training that is repeated beside other work has the same bits each time, at every level and number of threads.
#include <apex_cpp/optimizers.h>

#include <atomic>
#include <thread>

#include "tests/amp/support.h"
#include "tests/repetitions.h"

namespace apex::test {
namespace {

// Computes in two threads for as long as it lives, so that the training's threads are interrupted at other places each time.
class OtherWork {
 public:
  OtherWork() {
    for (auto& thread : threads_) thread = std::thread([this] { run(); });
  }
  ~OtherWork() {
    ends_ = true;
    for (auto& thread : threads_) thread.join();
  }

 private:
  void run() const {
    for (volatile double value = 1; !ends_;) value = value * 1.0000001;
  }

  std::atomic<bool> ends_{false};
  std::thread threads_[2];
};

// Large enough for several threads in convolutions, products and updates: they take shares of 32,768 elements. At O6 the
// product of `fc` runs in FP8.
struct WideNetImpl : torch::nn::Module {
  WideNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1)));
    bn = register_module("bn", torch::nn::BatchNorm2d(16));
    fc = register_module("fc", torch::nn::Linear(16 * 12 * 12, 48));
    last = register_module("last", torch::nn::Linear(48, 8));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(fc(bn(conv(x)).relu().flatten(1))); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
  torch::nn::Linear fc{nullptr}, last{nullptr};
};
TORCH_MODULE(WideNet);

std::string train(const std::string& level) {
  amp::reset();
  torch::manual_seed(4);
  WideNet model;
  optimizers::FusedAdam adam(model->parameters(), optimizers::FusedAdamOptions(1e-3));
  auto [net, opt] = amp::initialize(model, adam, level, quiet());
  const auto x = torch::randn({16, 3, 12, 12});
  for (int step = 0; step < 3; ++step) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(x).to(torch::kFloat).pow(2).mean(), opt).backward(); }
    opt.step();
  }
  return bytes_of(*net) + bytes_of(opt);
}

class Determinism : public AmpTest, public ::testing::WithParamInterface<std::tuple<const char*, int>> {
 protected:
  ~Determinism() override { at::set_num_threads(before_); }
  int before_ = at::get_num_threads();
};

TEST_P(Determinism, RepeatedTrainingHasTheSameBits) {
  const auto [level, threads] = GetParam();
  at::set_num_threads(threads);
  const std::string expected = train(level);
  const OtherWork other_work;
  for (int i = 0; i < repetitions(); ++i) ASSERT_EQ(train(level), expected) << "repetition " << i;
}

INSTANTIATE_TEST_SUITE_P(Levels, Determinism,
                         ::testing::Combine(::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                                            ::testing::Values(1, 2, 4)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + ("With" + std::to_string(std::get<1>(test.param))) + "Threads";
                         });

}  // namespace
}  // namespace apex::test
