#include "kernels/cases.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace {

using namespace bench::kernels;

const Case& case_of(const std::string& name) {
  const auto& all = cases();
  return *std::find_if(all.begin(), all.end(), [&](const Case& each) { return each.name == name; });
}

// torchvision's resnet50 has 161 parameters with 25,557,032 elements.
TEST(BenchCases, ResNet50HasItsParameters) {
  const Case& resnet = case_of("ResNet-50");
  EXPECT_EQ(resnet.shapes.size(), 161u);
  EXPECT_EQ(numel_of(resnet), 25557032);
}

TEST(BenchCases, HaveTheSizesInTheirNames) {
  EXPECT_EQ(numel_of(case_of("4 x 16 Mi")), int64_t{64} << 20);
  EXPECT_EQ(numel_of(case_of("2,000 x 1 k")), 2000 * 1024);
  EXPECT_EQ(numel_of(case_of("25,000 x 64")), 25000 * 64);
  EXPECT_EQ(numel_of(case_of("1 x 1")), 1);
}

TEST(BenchCases, AreFilledInTheRequestedDtype) {
  const auto tensors = filled({"", {{2, 3}, {5}}}, at::kBFloat16, at::kCPU, 0.5);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(tensors[1].scalar_type(), at::kBFloat16);
  EXPECT_EQ(tensors[1].sum().item<float>(), 2.5f);
}

}  // namespace
