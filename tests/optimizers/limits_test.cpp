// Steps at the limits of a machine: no memory for the state, very many tensors, tensors of more than 2^31 elements.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <vector>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers reserve terabytes of addresses

/// While it lives, this process may take `bytes` more of addresses than it has.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t bytes) {
    holes_.reserve(1000);
    ::malloc_trim(0);
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &outer_), 0);
    allow(0);
    // Earlier tests left free memory between what is in use. It would serve the tensors without new addresses.
    while (void* const hole = std::malloc(16 << 20)) holes_.push_back(hole);
    allow(bytes);
  }
  ~MemoryLimit() {
    ::setrlimit(RLIMIT_AS, &outer_);
    for (void* const hole : holes_) std::free(hole);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  void allow(rlim_t bytes) const {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + bytes, outer_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }

  rlimit outer_{};
  std::vector<void*> holes_;
};

class OutOfMemory : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, OutOfMemory, ::testing::ValuesIn(optimizer_classes()), name_of_class);

// The first step allocates the state. Wherever that fails, no parameter has changed, and the step that is tried again is the
// first step.
TEST_P(OutOfMemory, ChangesNoBitAndTheStepCanBeTriedAgain) {
  constexpr int64_t kNumel = 9 << 20;  // 36 MiB of float32: above the sizes that malloc keeps for later
  constexpr rlim_t kBytes = 4 * kNumel;
  const auto expected = values({kNumel}, 1).requires_grad_(), grad = values({kNumel}, 2);
  const auto start = expected.detach().clone();
  expected.mutable_grad() = grad.clone();  // FusedLAMB overwrites it
  make(GetParam(), {expected})->step();
  int failures = 0;
  for (const rlim_t tensors : {0, 1, 2, 3}) {
    const auto param = start.clone().requires_grad_();
    param.mutable_grad() = grad.clone();
    auto optimizer = make(GetParam(), {param});
    std::optional<MemoryLimit> limit(kBytes * tensors + kBytes / 2);
    try {
      optimizer->step();
      limit.reset();
    } catch (const std::exception&) {
      limit.reset();
      ++failures;
      EXPECT_TRUE(same_bytes(param, start) && same_bytes(param.grad(), grad)) << "memory for " << tensors << " tensors";
      EXPECT_TRUE(optimizer->state().empty());
      optimizer->step();
    }
    EXPECT_TRUE(same_bytes(param, expected)) << "memory for " << tensors << " tensors";
  }
  EXPECT_GE(failures, 1);
}

TEST_P(OutOfMemory, InALaterGroupChangesNothingInAnEarlierOne) {
  const auto small = values({5}, 1).requires_grad_(), large = at::zeros({32 << 20}).requires_grad_();
  const auto before = small.detach().clone();
  small.mutable_grad() = at::ones_like(small);
  large.mutable_grad() = at::zeros_like(large);
  auto optimizer = make(GetParam(), {small});
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({large}));
  {
    const MemoryLimit limit(rlim_t{32} << 20);
    EXPECT_THROW(optimizer->step(), std::exception);
  }
  EXPECT_TRUE(same_bytes(small, before));
  EXPECT_TRUE(optimizer->state().empty());
}

#endif

// Tensors of 0 to 3 elements, against one tensor that has all their elements.
TEST(Limits, AHundredThousandTensorsHaveTheBitsOfOne) {
  constexpr int64_t kCount = 100'000;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < kCount; ++i) sizes.push_back(i % 4);
  const auto whole = values({kCount / 4 * 6}, 1).requires_grad_(), grad = values({kCount / 4 * 6}, 2);
  std::vector<at::Tensor> params;
  const auto grads = grad.split_with_sizes(sizes);
  for (const at::Tensor& part : whole.detach().split_with_sizes(sizes)) {
    params.push_back(part.clone().requires_grad_());
    params.back().mutable_grad() = grads[params.size() - 1];
  }
  whole.mutable_grad() = grad;
  const auto options = FusedAdamOptions(0.05).weight_decay(0.01);
  FusedAdam many(params, options), one({whole}, options);
  for (int step = 0; step < 2; ++step) {
    many.step();
    one.step();
  }
  EXPECT_TRUE(same_bytes(at::cat(params).detach(), whole.detach()));
}

// 2^31 + 5 elements of bfloat16, 9 GB with the gradient: only in `tools/test --all`.
TEST(Limits, DISABLED_MoreElementsThanInt32Counts) {
  const int64_t numel = (int64_t{1} << 31) + 5;
  const auto param = at::ones({numel}, at::kBFloat16).requires_grad_();
  param.mutable_grad() = at::ones({numel}, at::kBFloat16);
  FusedSGD optimizer({param}, FusedSGDOptions(0.5));
  optimizer.step();
  EXPECT_EQ(param.detach().min().item<float>(), 0.5F);
  EXPECT_EQ(param.detach().max().item<float>(), 0.5F);
}

}  // namespace
}  // namespace test
