// One optimizer and one list over two GPUs: kernels read memory of their own device, and give the bits of the CPU.
#include <apex_cpp/optimizers.h>
#include <torch/torch.h>

#include "tests/cuda/support.h"

namespace cuda_test {
namespace {

namespace kernels = apex::kernels;
namespace optimizers = apex::optimizers;
using kernels_test::clear_flag;
using kernels_test::random_list;
using kernels_test::random_values;
using kernels_test::same_bits;
using kernels_test::same_bytes;

c10::Device gpu(size_t index) { return {at::kCUDA, static_cast<c10::DeviceIndex>(index % 2)}; }

class TwoGpus : public OnTwoGpus {};

TEST_F(TwoGpus, NormsHaveTheBitsOfTheCpu) {
  const Tensors in = random_list(at::kFloat);
  Tensors spread;
  for (size_t i = 0; i < in.size(); ++i) spread.push_back(in[i].to(gpu(i)));
  const auto [expected, expected_each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  const auto [total, each] = kernels::multi_tensor_l2norm(clear_flag_on_gpu(), spread, true);
  EXPECT_TRUE(same_bits(total.cpu(), expected));
  EXPECT_TRUE(same_bits(each.cpu(), expected_each));
}

// An optimizer with parameters on two GPUs, and the same one on the CPU. The loss scaler's tensors are on the first GPU.
template <class Opt, class Options>
class Pair {
 public:
  explicit Pair(const Options& options) : gpus_(params(true), options), cpu_(params(false), options) {}

  void step(bool first_has_gradient = true) {
    for (Opt* optimizer : {&gpus_, &cpu_}) {
      auto& params = optimizer->param_groups()[0].params();
      torch::manual_seed(steps_);  // the same gradients for both optimizers
      for (size_t i = 0; i < params.size(); ++i) {
        params[i].mutable_grad() =
            i == 0 && !first_has_gradient ? at::Tensor() : random_values(kSize, at::kFloat).to(params[i].device());
      }
      const c10::Device device = params[0].device();
      optimizer->grad_scale = at::full({1}, 4.0f, device);
      optimizer->found_inf = at::zeros({1}, device);
      optimizer->step();
    }
    ++steps_;
  }

  void expect_same_params() {
    EXPECT_TRUE(same_bytes(on_cpu(gpus_.param_groups()[0].params()), cpu_.param_groups()[0].params()));
    EXPECT_EQ(gpus_.steps_taken(), cpu_.steps_taken());
  }

 private:
  static constexpr int64_t kSize = 1030;

  static Tensors params(bool on_gpus) {
    Tensors all;
    torch::manual_seed(1);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor values = random_values(kSize, at::kFloat);
      all.push_back((on_gpus ? values.to(gpu(i)) : values.clone()).requires_grad_());
    }
    return all;
  }

  Opt gpus_, cpu_;
  uint64_t steps_ = 2;
};

template <class Opt, class Options>
void expect_the_steps_of_the_cpu(const Options& options) {
  Pair<Opt, Options> both(options), late(options);
  for (int i = 0; i < 3; ++i) both.step();
  both.expect_same_params();
  // First only parameters 1 and 2, one per GPU, without the group's first parameter; then all.
  for (int i = 0; i < 2; ++i) late.step(/*first_has_gradient=*/false);
  late.step();
  late.expect_same_params();
}

TEST_F(TwoGpus, StepsHaveTheBitsOfTheCpu) {
  expect_the_steps_of_the_cpu<optimizers::FusedSGD>(optimizers::FusedSGDOptions(0.1).momentum(0.9));
  expect_the_steps_of_the_cpu<optimizers::FusedAdagrad>(optimizers::FusedAdagradOptions());
  expect_the_steps_of_the_cpu<optimizers::FusedAdam>(optimizers::FusedAdamOptions());
  expect_the_steps_of_the_cpu<optimizers::FusedAdam>(optimizers::FusedAdamOptions().capturable(true));
  expect_the_steps_of_the_cpu<optimizers::FusedLARS>(optimizers::FusedLARSOptions(0.1).momentum(0.9));
  expect_the_steps_of_the_cpu<optimizers::FusedLion>(optimizers::FusedLionOptions());
  expect_the_steps_of_the_cpu<optimizers::FusedLAMB>(optimizers::FusedLAMBOptions());
  expect_the_steps_of_the_cpu<optimizers::FusedNovoGrad>(optimizers::FusedNovoGradOptions());
  expect_the_steps_of_the_cpu<optimizers::FusedMixedPrecisionLamb>(optimizers::FusedMixedPrecisionLambOptions());
}

// The only call of the step is on another GPU than the count.
TEST_F(TwoGpus, AStepIsCountedOnOneDevice) {
  const Tensors params = {at::ones({5}).to(gpu(0)).requires_grad_(), at::ones({5}).to(gpu(1)).requires_grad_()};
  optimizers::FusedAdam optimizer(params, optimizers::FusedAdamOptions().capturable(true));
  params[1].mutable_grad() = at::ones_like(params[1]);
  for (int i = 0; i < 2; ++i) optimizer.step();
  EXPECT_EQ(optimizer.steps_taken(), 2);
}

}  // namespace
}  // namespace cuda_test
