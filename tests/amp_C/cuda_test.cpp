// Compares every function on CUDA tensors with the same function on CPU tensors.
#include "functions.h"

#include "tests/needs_gpus.h"

namespace {

using namespace amp_C_test;

class OnCuda : public testing::TestWithParam<Function> {
 protected:
  void SetUp() override { APEX_CPP_NEEDS_GPUS(1); }

  static TensorLists on(at::Device device, const TensorLists& lists) {
    TensorLists moved;
    for (const Tensors& list : lists) {
      moved.emplace_back();
      for (const at::Tensor& tensor : list) moved.back().push_back(tensor.to(device));
    }
    return moved;
  }

  static void expect_same(const Tensors& cuda, const Tensors& cpu, const std::string& what) {
    ASSERT_EQ(cuda.size(), cpu.size()) << what;
    for (size_t i = 0; i < cpu.size(); ++i) {
      const at::Tensor moved = cuda[i].cpu();
      EXPECT_TRUE(at::allclose(moved, cpu[i], 0, 0, /*equal_nan=*/true)) << what << ", tensor " << i;
      EXPECT_TRUE(at::equal(moved.signbit(), cpu[i].signbit())) << what << ", tensor " << i;
    }
  }
};

TEST_P(OnCuda, GivesTheBitsOfTheCpu) {
  TensorLists on_cpu;
  for (size_t i = 0; i < GetParam().depth; ++i) on_cpu.push_back(positive_list(at::kFloat));
  on_cpu[0][1][3] = std::nan("");
  const TensorLists on_cuda = on(at::kCUDA, on_cpu);
  const at::Tensor cpu_flag = flag(), cuda_flag = flag().to(at::kCUDA);
  const Tensors cpu_results = GetParam().call(cpu_flag, on_cpu), cuda_results = GetParam().call(cuda_flag, on_cuda);
  EXPECT_EQ(cuda_flag.item<int>(), cpu_flag.item<int>());
  for (size_t i = 0; i < on_cpu.size(); ++i) expect_same(on_cuda[i], on_cpu[i], "list " + std::to_string(i));
  expect_same(cuda_results, cpu_results, "results");
}

INSTANTIATE_TEST_SUITE_P(, OnCuda, testing::ValuesIn(functions()), [](const auto& test) { return test.param.name; });

}  // namespace
