// Every function on CUDA tensors, against itself on CPU tensors.
#include "functions.h"

namespace {

using namespace amp_C_test;

class OnCuda : public testing::TestWithParam<Function> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  }

  static TensorLists on(at::Device device, const TensorLists& lists) {
    TensorLists moved;
    for (const Tensors& list : lists) {
      moved.emplace_back();
      for (const at::Tensor& tensor : list) moved.back().push_back(tensor.to(device));
    }
    return moved;
  }
};

TEST_P(OnCuda, DoesWhatItDoesOnTheCpu) {
  TensorLists on_cpu;
  for (size_t i = 0; i < GetParam().depth; ++i) on_cpu.push_back(positive_list(at::kFloat));
  on_cpu[0][1][3] = std::nan("");
  const TensorLists on_cuda = on(at::kCUDA, on_cpu);
  const at::Tensor cpu_flag = flag(), cuda_flag = flag().to(at::kCUDA);
  GetParam().call(cpu_flag, on_cpu);
  GetParam().call(cuda_flag, on_cuda);
  EXPECT_EQ(cuda_flag.item<int>(), cpu_flag.item<int>());
  for (size_t i = 0; i < on_cpu.size(); ++i) {
    for (size_t t = 0; t < on_cpu[i].size(); ++t) {
      EXPECT_TRUE(at::allclose(on_cuda[i][t].cpu(), on_cpu[i][t], 0, 0, /*equal_nan=*/true))
          << "list " << i << ", tensor " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, OnCuda, testing::ValuesIn(functions()), [](const auto& test) { return test.param.name; });

}  // namespace
