// GradScaler and gradients: for optimizers that take the scale themselves it only reads them; for others it unscales them in
// place, like torch's kernel.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include "tests/torch_amp/grad_scaler_support.h"

namespace apex::test {
namespace {

/// Takes the scale, and steps nothing: what is left is what the scaler did.
class TakesTheScale : public torch::optim::SGD, public amp::StepSupportsAmpScaling {
 public:
  explicit TakesTheScale(std::vector<torch::Tensor> params) : SGD(std::move(params), torch::optim::SGDOptions(1.0)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    EXPECT_EQ(item(grad_scale), 128.0f);
    found = item(found_inf);
    return {};
  }
  float found = -1;
};

/// What the scaler found in these gradients.
float found_in(const std::vector<torch::Tensor>& grads, torch::Device device) {
  std::vector<torch::Tensor> params;
  for (const auto& grad : grads) params.push_back(param_with_grad(grad));
  TakesTheScale optimizer(params);
  amp::GradScaler scaler(amp::GradScalerOptions().device(device.type()).init_scale(128.0));
  scaler.scale(torch::ones({1}, device));
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), optimizer.found != 0 ? 64.0 : 128.0);
  return optimizer.found;
}

constexpr double kInfinity = INFINITY, kNotANumber = NAN;
constexpr torch::ScalarType kGradDtypes[] = {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble};

/// A sparse gradient of 4 values with two of its three for the same index.
torch::Tensor with_repeats(const torch::Tensor& values) {
  const auto indices = torch::tensor({{0, 2, 2}}, torch::TensorOptions().dtype(torch::kLong).device(values.device()));
  return torch::sparse_coo_tensor(indices, values, {4});
}

class GradScalerCheck : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, GradScalerCheck, kDevices);

TEST_P(GradScalerCheck, WritesNoGradient) {
  for (const auto dtype : kGradDtypes) {
    const auto gapped = torch::randn({6, 4}, options()).to(dtype).slice(1, 0, 2);
    const std::vector<torch::Tensor> grads = {
        torch::randn({70000}, options()).to(dtype), torch::randn({3, 5}, options()).to(dtype).t(), gapped,
        torch::zeros({0}, options(dtype)), with_repeats(torch::tensor({1.0, 2.0, 3.0}, options(dtype)))};
    std::vector<std::string> bytes;
    std::vector<torch::Tensor> memory;
    std::vector<uint32_t> versions;
    for (const auto& grad : grads) {
      memory.push_back(grad.is_sparse() ? grad._values() : grad);
      bytes.push_back(bytes_of(memory.back().cpu()));
      versions.push_back(grad._version());
    }
    EXPECT_EQ(found_in(grads, device()), 0.0f);
    for (size_t i = 0; i < grads.size(); ++i) {
      EXPECT_EQ(bytes_of(memory[i].cpu()), bytes[i]) << dtype << " " << i;
      EXPECT_EQ(grads[i]._version(), versions[i]) << dtype << " " << i;
    }
    EXPECT_FALSE(grads.back().is_coalesced());
  }
}

TEST_P(GradScalerCheck, FindsNonFiniteValuesInEveryDtypeAndPosition) {
  for (const auto dtype : kGradDtypes) {
    for (const double value : {kInfinity, -kInfinity, kNotANumber}) {
      for (const int64_t tensor : {0, 1, 2}) {
        for (const int64_t element : {0, 17, 599}) {
          std::vector<torch::Tensor> grads;
          for (int i = 0; i < 3; ++i) grads.push_back(torch::ones({600}, options(i == 1 ? torch::kFloat : dtype)));
          grads[tensor][element] = value;
          EXPECT_EQ(found_in(grads, device()), 1.0f) << dtype << " " << value << " " << tensor << " " << element;
        }
      }
    }
  }
}

TEST_P(GradScalerCheck, FindsNonFiniteValuesInSparseGradients) {
  for (const auto dtype : kGradDtypes) {
    const auto dense = torch::ones({5}, options(dtype));
    EXPECT_EQ(found_in({dense, with_repeats(torch::tensor({1.0, 2.0, 3.0}, options(dtype)))}, device()), 0.0f);
    EXPECT_EQ(found_in({dense, with_repeats(torch::tensor({1.0, 2.0, kInfinity}, options(dtype)))}, device()), 1.0f);
  }
}

// Each value fits float16, their sum does not. As in PyTorch no other dtype is summed.
TEST_P(GradScalerCheck, SumsOfSparseFloat16GradientsMayOverflow) {
  const auto grad = with_repeats(torch::tensor({1.0, 40000.0, 40000.0}, options(torch::kHalf)));
  EXPECT_EQ(found_in({grad}, device()), 1.0f);
  EXPECT_FALSE(grad.is_coalesced());
  EXPECT_EQ(item(grad._values()[2]), 40000.0f);
  EXPECT_EQ(found_in({with_repeats(torch::tensor({1.0, 3e38, 3e38}, options()))}, device()), 0.0f);
}

class GradScalerUnscale : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, GradScalerUnscale, kDevices);

// By a scale whose reciprocal is not exact; finite values and others.
TEST_P(GradScalerUnscale, HasTheBitsOfTorchsKernel) {
  std::vector<torch::Tensor> params, expected;
  std::vector<torch::ScalarType> dtypes = {torch::kFloat, torch::kDouble};
  if (device().is_cpu()) dtypes.push_back(torch::kBFloat16);  // PyTorch's kernel for CUDA tensors does not take it
  for (const auto dtype : dtypes) {
    for (const int64_t size : {1, 37, 70000}) {
      auto grad = torch::randn({size}, options()).to(dtype).mul(1000);
      if (size == 37) grad[5] = INFINITY;
      params.push_back(param_with_grad(grad));
      expected.push_back(grad.clone());
    }
  }
  auto optimizer = sgd(params);
  amp::GradScaler scaler(scaler_options().init_scale(3.0));
  scaler.scale(torch::ones({1}, options()));
  scaler.unscale_(optimizer);
  auto found_inf = torch::zeros({}, options());
  const auto inv_scale = torch::full({}, static_cast<float>(1.0 / 3.0), options());
  for (size_t i = 0; i < params.size(); ++i) {
    at::_amp_foreach_non_finite_check_and_unscale_({expected[i]}, found_inf, inv_scale);
    EXPECT_EQ(bytes_of(params[i].grad().cpu()), bytes_of(expected[i].cpu())) << i;
  }
}

// The tensors are not replaced, whichever strides they have.
TEST_P(GradScalerUnscale, WorksInPlace) {
  const auto memory = torch::full({6, 4}, 6.0, options());
  const auto gapped = memory.slice(1, 0, 2), turned = torch::full({3, 2}, 6.0, options()).t(),
             sparse = with_repeats(torch::full({3}, 6.0, options()));
  std::vector<torch::Tensor> params;
  for (const auto& grad : {gapped, turned, sparse}) params.push_back(param_with_grad(grad));
  auto optimizer = sgd(params);
  amp::GradScaler scaler(scaler_options().init_scale(2.0));
  scaler.scale(torch::ones({1}, options()));
  const auto version = gapped._version();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(gapped.eq(3).all().item<bool>() && turned.eq(3).all().item<bool>());
  EXPECT_TRUE(sparse._values().eq(3).all().item<bool>());
  EXPECT_TRUE(memory.slice(1, 2, 4).eq(6).all().item<bool>()) << "what lies in the gaps is not the gradient's";
  EXPECT_GT(gapped._version(), version);
  EXPECT_FALSE(sparse.is_coalesced());
  EXPECT_TRUE(params[0].grad().is_same(gapped) && params[1].grad().is_same(turned) && params[2].grad().is_same(sparse));
}

}  // namespace
}  // namespace apex::test
