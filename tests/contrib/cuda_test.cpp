// Compares CUDA tensors with CPU tensors. Needs a GPU.
#include <apex_cpp/contrib.h>

#include "tests/amp/support.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

class ContribOnCuda : public ::testing::TestWithParam<torch::Dtype> {
 protected:
  void SetUp() override { APEX_CPP_NEEDS_GPUS(1); }
};

// Logarithms and, in float64, exponentials of the two are within a unit in the last place of each other. So results of 16 bits
// may be neighbours, 2^-7 of a bfloat16 apart. In float32, lse may round to a neighbour, 2^-20 away from 8 to 16, and
// exponentials follow. In float64, 5003 terms differ by 5003 * 2^-53 < 2^-40 in all.
TEST_P(ContribOnCuda, XentropyIsNextToTheCpus) {
  for (const int64_t classes : {1, 10, 129, 5003}) {
    const torch::Tensor logits = (torch::randn({33, classes}) * 4).to(GetParam());
    const torch::Tensor labels = torch::randint(classes, {33});
    const auto run = [&](torch::Device device) {
      const torch::Tensor x = logits.to(device).requires_grad_();
      const torch::Tensor losses = contrib::xentropy::SoftmaxCrossEntropyLoss::apply(x, labels.to(device), 0.1);
      losses.sum().backward();
      return std::make_pair(losses.detach().cpu().to(torch::kDouble), x.grad().cpu().to(torch::kDouble));
    };
    const auto [losses, grads] = run(torch::kCUDA);
    const auto [want_losses, want_grads] = run(torch::kCPU);
    const double least = GetParam() == torch::kDouble ? 0x1p-40 : 0x1p-20, step = logits.element_size() == 2 ? 0x1p-7 : least;
    EXPECT_TRUE(torch::allclose(losses, want_losses, step, least)) << classes;
    EXPECT_TRUE(torch::allclose(grads, want_grads, step, least)) << classes;
  }
}

TEST_P(ContribOnCuda, AnInvalidLabelGivesNan) {
  const torch::Tensor logits = torch::randn({2, 3}).to(torch::kCUDA, GetParam());
  const auto losses = contrib::xentropy::SoftmaxCrossEntropyLoss::apply(logits, torch::tensor({1, 7}).cuda(), 0.0, -1);
  EXPECT_FALSE(losses[0].isnan().item<bool>());
  EXPECT_TRUE(losses[1].isnan().item<bool>());
}

// Kernels give the same bits on both. Float64 goes by LibTorch's operators, which add 15,000 rounded squares in orders of their
// own: each sum is off by 15,000 units of 2^-53 at most, its root by half of that, and a few roundings follow.
TEST_P(ContribOnCuda, ClippingGivesTheBitsOfTheCpu) {
  torch::Tensor here = torch::zeros({500, 30}, GetParam()).requires_grad_();
  here.mutable_grad() = torch::randn({500, 30}).to(GetParam());
  torch::Tensor there = here.detach().cuda().requires_grad_();
  there.mutable_grad() = here.grad().cuda();
  const auto norm = contrib::clip_grad_norm_(there, 2.0);
  EXPECT_TRUE(norm.is_cuda());
  const auto want = contrib::clip_grad_norm_(here, 2.0);
  if (GetParam() == torch::kDouble) {
    EXPECT_NEAR(norm.item<double>(), want.item<double>(), want.item<double>() * (15000 + 8) * 0x1p-53);
  } else {
    EXPECT_EQ(bytes_of(norm.cpu()), bytes_of(want));
  }
  EXPECT_TRUE(torch::allclose(there.grad().cpu(), here.grad(), 1e-6, 0));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ContribOnCuda,
                         ::testing::Values(torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

}  // namespace
}  // namespace apex::test
