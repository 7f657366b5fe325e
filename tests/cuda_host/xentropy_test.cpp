// Softmax cross entropy: the bits of the CPU driver, which takes logarithms, and exponentials in float64, from the same
// library.
#include <ATen/ATen.h>

#include "kernels/xentropy/xentropy.h"
#include "tests/cuda_host/support.h"
#include "tests/kernels/support.h"

namespace cuda_host_test {
namespace {

namespace kernels = apex::kernels;
namespace xentropy = apex::kernels::xentropy;
using kernels_test::same_bits;

class HostXentropy : public OnFakeDeviceWith<at::ScalarType> {
 protected:
  static constexpr int64_t kPadding = -100;

  static void expect_the_bits_of_the_cpu(int64_t rows, int64_t classes, double smoothing) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << classes);
    const at::ScalarType dtype = GetParam(), losses_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor logits =
        kernels_test::random_values(rows * classes, dtype, /*offset=*/1, /*spread=*/4).view({rows, classes});
    const at::Tensor grads = kernels_test::random_values(rows, losses_dtype);
    const at::Tensor labels = at::randint(classes, {rows}, at::kLong);
    if (rows > 4) labels[1] = kPadding, labels[2] = classes, labels[3] = -1;
    EXPECT_TRUE(same_bits(by_kernels(logits, grads, labels, smoothing), on_the_cpu(logits, grads, labels, smoothing)));
  }

 private:
  static Tensors on_the_cpu(const at::Tensor& logits, const at::Tensor& grads, const at::Tensor& labels, double smoothing) {
    const kernels::CrossEntropyTargets targets{labels, smoothing, kPadding};
    const kernels::CrossEntropy out = kernels::cross_entropy_forward(logits, targets);
    return {out.losses, kernels::cross_entropy_backward(grads, logits, out.log_sum_exp, targets)};
  }

  static Tensors by_kernels(const at::Tensor& logits, const at::Tensor& grads, const at::Tensor& labels, double smoothing) {
    const c10::Device device = kDevice;
    const kernels::CrossEntropyTargets targets{labels.to(device), smoothing, kPadding};
    const at::Tensor there = on(device, {logits})[0], grads_there = grads.to(device);
    const kernels::CrossEntropy out{at::empty_like(grads_there), at::empty_like(grads_there)};
    const at::Tensor grad_logits = at::empty_like(there);
    xentropy::cuda::forward({there, targets, out});
    xentropy::cuda::backward({grads_there, there, out.log_sum_exp, targets, grad_logits});
    return {out.losses.cpu(), grad_logits.cpu()};
  }
};

// Classes next to the number of threads.
TEST_P(HostXentropy, HasTheBitsOfTheCpu) {
  for (const int64_t classes : {1, 2, 127, 128, 129, 255, 1000}) {
    for (const double smoothing : {0.0, 0.1}) expect_the_bits_of_the_cpu(5, classes, smoothing);
    if (is_small() && classes == 2) return;
  }
}

// A launch has 7 blocks here: two full rounds, and a third.
TEST_P(HostXentropy, OfMoreRowsThanBlocksHasTheBitsOfTheCpu) { expect_the_bits_of_the_cpu(is_small() ? 9 : 17, 130, 0.1); }

TEST_P(HostXentropy, OfOneRowHasTheBitsOfTheCpu) { expect_the_bits_of_the_cpu(1, 77, 0.2); }

INSTANTIATE_TEST_SUITE_P(Dtypes, HostXentropy, ::testing::ValuesIn(kernels_test::dtypes()),
                         [](const auto& test) { return kernels_test::name_of(test.param); });

}  // namespace
}  // namespace cuda_host_test
