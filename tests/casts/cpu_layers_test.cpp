// Memory-bound layers on BFloat16 CPU tensors, as programs call them: with amp they use apex_cpp's kernels and give LibTorch's
// results.
#include "kernels/layers/layers.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Batch norm with its parameters, statistics and input, in one type or with FP32 parameters.
struct BatchNormRun {
  Tensor x, weight, bias, mean, variance, y;

  BatchNormRun(const Tensor& input, at::ScalarType params, bool training, const Tensor& grad) {
    const auto channels = at::TensorOptions(params).requires_grad(false);
    const int64_t count = input.size(1);
    x = input.detach().clone().requires_grad_();
    weight = torch::linspace(-1, 2, count, channels).requires_grad_();
    bias = torch::linspace(1, -1, count, channels).requires_grad_();
    mean = torch::linspace(-0.5, 0.5, count, channels);
    variance = torch::linspace(0.5, 2, count, channels);
    // A separate leaf would count as a 16-bit weight, and the other arguments would be cast to its dtype.
    y = at::batch_norm(x.clone(), weight, bias, mean, variance, training, 0.1, 1e-5, false);
    y.backward(grad.to(y.scalar_type()));
  }
  Tensors results() const { return {y.detach(), x.grad(), weight.grad(), bias.grad(), mean, variance}; }
};

const char* const kNames[] = {"y", "grad_x", "grad_weight", "grad_bias", "running_mean", "running_var"};

class CpuLayers : public AmpTest {
 protected:
  torch::nn::Linear net_{2, 2};
};

Tensor channels_last(const Tensor& x) {
  if (x.dim() == 4) return x.contiguous(at::MemoryFormat::ChannelsLast);
  return x.dim() == 5 ? x.contiguous(at::MemoryFormat::ChannelsLast3d) : x;
}

double error_of(const Tensor& got, const Tensor& exact) { return (got.to(at::kDouble) - exact).norm().item<double>(); }

TEST_F(CpuLayers, BatchNormIsAsAccurateAsLibTorchs) {
  std::vector<Tensor> inputs;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{64, 20}, {8, 16, 12}, {4, 24, 6, 6}, {8, 3, 8, 4}, {2, 32, 3, 4, 2}, {3, 5, 3, 3}}) {
    inputs.push_back(torch::randn(shape).to(at::kBFloat16));
    inputs.push_back(channels_last(inputs.back()));
  }
  const size_t usual = inputs.size();
  // Channels are last in memory, and dimensions of size 1 have other strides than LibTorch gives them: its own gradients are
  // wrong.
  inputs.push_back(torch::randn({8, 12, 16}).to(at::kBFloat16).transpose(1, 2).unsqueeze(-1));
  inputs.push_back(channels_last(torch::randn({3, 16, 4, 4}).to(at::kBFloat16)).select(0, 1).unsqueeze(0));
  for (const bool training : {true, false}) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      const Tensor &input = inputs[k], of_native = k < usual ? input : input.contiguous();
      const Tensor grad = torch::randn(input.sizes()).to(at::kBFloat16);
      const Tensors exact = BatchNormRun(of_native.to(at::kDouble), at::kDouble, training, grad).results();
      const Tensors native = BatchNormRun(of_native, at::kFloat, training, grad).results();
      auto handle = amp::initialize(net_, "O5", quiet());
      const BatchNormRun run(input, at::kFloat, training, grad);
      amp::reset();
      EXPECT_EQ(run.y.strides(), input.strides());
      const Tensors own = run.results();
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_EQ(own[i].scalar_type(), native[i].scalar_type()) << kNames[i];
        // Both results are rounded to their dtype, so either error may be the smaller by one rounding.
        const double rounding = (own[i].scalar_type() == at::kFloat ? 0x1p-22 : 0x1p-10) * exact[i].norm().item<double>();
        EXPECT_LE(error_of(own[i], exact[i]), error_of(native[i], exact[i]) + rounding)
            << kNames[i] << ' ' << input.sizes() << ' ' << input.strides();
      }
    }
  }
}

// With cpu_16bit: native, and without amp, LibTorch's kernels are used.
TEST_F(CpuLayers, BatchNormUsesOurKernelUnlessNativeIsRequested) {
  const Tensor image = torch::randn({16, 32, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast).to(at::kBFloat16);
  const Tensor rows = image.permute({0, 2, 3, 1}).reshape({-1, 32}), weight = torch::ones({32}), bias = torch::zeros({32});
  const Tensor apex_cpp_mean = kernels::batch_statistics({16 * 16 * 16, 32}, image).mean;
  for (const Tensor& x : {image, rows}) {
    const auto mean_of_batch = [&] {
      const at::NoGradGuard no_grad;
      return std::get<1>(at::native_batch_norm(x, weight, bias, {}, {}, true, 0.1, 1e-5));
    };
    const Tensor libtorch_mean = mean_of_batch();
    ASSERT_FALSE(at::equal(apex_cpp_mean, libtorch_mean)) << "their sums have another order, or nothing is to be seen here";
    for (const char* way : {"auto", "float32", "native"}) {
      auto handle = amp::initialize(net_, "O5", quiet().cpu_16bit(way));
      EXPECT_TRUE(at::equal(mean_of_batch(), way == std::string("native") ? libtorch_mean : apex_cpp_mean))
          << way << ' ' << x.sizes();
      amp::reset();
    }
  }
}

// There the unbiased variance is 0 / 0.
TEST_F(CpuLayers, BatchNormOfOneValuePerChannelIsLibTorchs) {
  const Tensor input = torch::randn({1, 32}).to(at::kBFloat16), grad = torch::randn({1, 32});
  for (const bool training : {true, false}) {
    const Tensors native = BatchNormRun(input, at::kFloat, training, grad).results();
    auto handle = amp::initialize(net_, "O5", quiet());
    const Tensors got = BatchNormRun(input, at::kFloat, training, grad).results();
    amp::reset();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], native[i], 0, 0, /*equal_nan=*/true)) << kNames[i] << got[i] << native[i];
    }
  }
}

// Training and evaluation, forward and backward, as programs call it. The sums of apex_cpp's kernels have an order of their
// own.
TEST_F(CpuLayers, BatchNormCalledByProgramsUsesOurKernel) {
  const Tensor x = channels_last(torch::randn({16, 32, 16, 16}).to(at::kBFloat16)), grad = torch::randn_like(x);
  for (const bool training : {true, false}) {
    const Tensors native = BatchNormRun(x, at::kFloat, training, grad).results();
    auto handle = amp::initialize(net_, "O5", quiet());
    const Tensors own = BatchNormRun(x, at::kFloat, training, grad).results();
    amp::reset();
    EXPECT_FALSE(at::equal(own[2], native[2])) << "the gradient of the weight";
    EXPECT_FALSE(training && at::equal(own[4], native[4])) << "the running mean";
  }
}

/// ReLU and sums as programs call them, and their gradients.
Tensors relus_and_sums(const Tensor& input, const Tensor& grad) {
  const Tensor x = input.detach().clone().requires_grad_();
  Tensor y = at::relu(x) + x;
  y = y.mul(0.5).relu_().mul(2);
  y.add_(x);
  y = at::add(y, x, 0.25) + 1;
  y.backward(grad);
  return {y.detach(), x.grad()};
}

// Equal numbers and signs of zeros; a NaN's bits may differ.
bool are_equal(const Tensor& a, const Tensor& b) {
  return at::equal(a.isnan(), b.isnan()) &&
         at::equal(a.masked_fill(a.isnan(), 1).view(at::kShort), b.masked_fill(b.isnan(), 1).view(at::kShort));
}

Tensor with_special_values(Tensor x) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor special = torch::tensor({0.0, -0.0, infinity, -infinity, std::nan(""), 1e-40}).to(x.scalar_type());
  x.view(-1).narrow(0, 100, special.numel()).copy_(special);
  return x;
}

TEST_F(CpuLayers, ReluAndSumsEqualLibTorchs) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const Tensor image = with_special_values(torch::randn({4, 8, 16, 16}).to(type)),
                 grad = torch::randn({4, 8, 16, 16}).to(type);
    const Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
    const Tensors inputs = {image, last, image.transpose(0, 1), last.narrow(1, 1, 6)};
    for (const Tensor& input : inputs) {
      const Tensor grads = grad.reshape(-1).narrow(0, 0, input.numel()).view(input.sizes());
      const Tensor spread = grads.select(3, 0).unsqueeze(3).expand(input.sizes());
      const Tensors expected = relus_and_sums(input, grads), expected_of_spread = relus_and_sums(input, spread.contiguous());
      auto handle = amp::initialize(net_, type == at::kHalf ? "O2" : "O5", quiet());
      const Tensors got = relus_and_sums(input, grads), got_of_spread = relus_and_sums(input, spread);
      amp::reset();
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(are_equal(got[i].contiguous(), expected[i].contiguous())) << i;
        EXPECT_TRUE(are_equal(got_of_spread[i].contiguous(), expected_of_spread[i].contiguous())) << i;
      }
    }
  }
}

// Left to LibTorch: BFloat16 with other dtypes, sums into memory that is still read, nested tensors.
TEST_F(CpuLayers, UnsupportedInputsAreLeftToLibTorch) {
  auto handle = amp::initialize(net_, "O5", quiet());
  const Tensor x = torch::randn({8192}).to(at::kBFloat16), wide = x.to(at::kDouble);
  for (const auto type : {at::kBool, at::kLong, at::kComplexFloat, at::kFloat8_e5m2}) {
    const Tensor other = torch::ones({8192}).to(type);
    if (type == at::kFloat8_e5m2) {
      EXPECT_THROW(at::add(x, other), c10::Error);
      continue;
    }
    const Tensor expected = type == at::kComplexFloat ? (x.to(at::kComplexFloat) + other) : (wide + 1).to(at::kBFloat16);
    EXPECT_TRUE(at::equal(at::add(x, other).to(expected.scalar_type()), expected)) << type;
    EXPECT_TRUE(at::equal(at::add(other, x).to(expected.scalar_type()), expected)) << type;
    if (type == at::kComplexFloat) continue;
    EXPECT_TRUE(at::equal(x.clone().add_(other), expected)) << type;
  }
  Tensor overlapping = x.clone();
  EXPECT_THROW(overlapping.narrow(0, 0, 8000).add_(overlapping.narrow(0, 1, 8000)), c10::Error);
  EXPECT_TRUE(at::equal(x.clone().add_(x, 1.0), (wide * 2).to(at::kBFloat16)));
  const Tensor nested =
      at::_nested_tensor_from_tensor_list({torch::ones({64, 64}).to(at::kBFloat16), torch::ones({32, 64}).to(at::kBFloat16)});
  EXPECT_EQ(at::add(nested, nested).unbind()[1].sum().item<double>(), 2 * 32 * 64);
  // Parameters on another device than the input are LibTorch's error.
  const Tensor image = channels_last(torch::randn({4, 32, 8, 8}).to(at::kBFloat16)), elsewhere = torch::ones({32}, at::kMeta);
  EXPECT_ANY_THROW(at::native_batch_norm(image, elsewhere, elsewhere, {}, {}, true, 0.1, 1e-5));
}

// Of FP32, of a few elements, and of every other column, where the columns between keep their values.
TEST_F(CpuLayers, ReluInPlaceIsRightForOtherTensors) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    auto handle = amp::initialize(net_, type == at::kHalf ? "O2" : "O5", quiet());
    for (const int64_t size : {6, 128}) {
      Tensor matrix = torch::full({size, size}, -1.0, type);
      matrix.select(0, 0).fill_(2);
      Tensor columns = matrix.slice(1, 0, size, 2);
      columns.relu_();
      EXPECT_TRUE(at::equal(columns.select(0, 0), torch::full({size / 2}, 2.0, type))) << type << ' ' << size;
      EXPECT_TRUE(columns.slice(0, 1).eq(0).all().item<bool>()) << type << ' ' << size;
      EXPECT_TRUE(matrix.slice(0, 1).slice(1, 1, size, 2).eq(-1).all().item<bool>()) << type << ' ' << size;
      EXPECT_TRUE(torch::full({size, size}, -1.0, type).relu_().eq(0).all().item<bool>()) << type << ' ' << size;
    }
    amp::reset();
  }
}

/// A function of a weight [3, 8] that uses its elements thousands of times.
struct ManyUses {
  const char* name;
  Tensor (*call)(const Tensor& weight);
};

const Tensor& ids() {
  static const Tensor tensor = torch::randint(3, {6000}, torch::kLong);
  return tensor;
}

const ManyUses kManyUses[] = {
    {"layer_norm",
     [](const Tensor& w) {
       const Tensor x = torch::arange(6000 * 8).remainder(97).view({6000, 8}).to(w.scalar_type()) / 16;
       return at::layer_norm(x, {8}, w[0], w[1]);
     }},
    {"embedding", [](const Tensor& w) { return at::embedding(w, ids()); }},
    {"embedding_bag", [](const Tensor& w) { return std::get<0>(at::embedding_bag(w, ids(), torch::arange(0, 6000, 2))); }},
    {"index", [](const Tensor& w) { return w.index({ids()}); }},
    {"replication_pad2d",
     [](const Tensor& w) {
       return at::replication_pad2d(w.view({1, 1, 3, 8}), {70, 70, 70, 70});
     }},
    {"grid_sampler",
     [](const Tensor& w) {
       const Tensor grid = torch::arange(2 * 80 * 80).remainder(65).view({1, 80, 80, 2}).to(w.scalar_type()) / 32 - 1;
       return at::grid_sampler(w.view({1, 1, 3, 8}), grid, 0, 0, false);
     }},
};

// A sum in 16 bits stands still where a summand is below half a unit of it. In FP32 the sum of n summands is off by n * 2^-24
// of the sum of their magnitudes, which all have one sign here, except those of a layer norm's weight. Three roundings to 16
// bits follow: of the result, and within a layer norm of the mean and of the standard deviation, each of which a value of one
// magnitude is multiplied with.
TEST_F(CpuLayers, GradientsOfManyUsesAreSummedInFloat32) {
  for (const auto& [name, call] : kManyUses) {
    for (const char* const level : {"O2", "O5"}) {
      const auto dtype = std::string(level) == "O2" ? at::kHalf : at::kBFloat16;
      const Tensor weight = torch::linspace(0.5, 2, 24).view({3, 8}).to(dtype).requires_grad_();
      const auto grad_of = [&call = call, &weight](at::ScalarType type) {
        const Tensor y = call(weight.detach().to(type).requires_grad_());
        const Tensor grad = torch::linspace(0.5, 1, y.numel()).view(y.sizes()).to(weight.scalar_type()).to(type);
        const Tensor w = weight.detach().to(type).requires_grad_();
        return torch::autograd::grad({call(w)}, {w}, {grad})[0];
      };
      const Tensor exact = grad_of(at::kDouble);
      auto handle = amp::initialize(net_, level, quiet());
      const Tensor got = grad_of(dtype);
      amp::reset();
      EXPECT_EQ(got.scalar_type(), dtype);
      const double rounding = dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
      EXPECT_LE(error_of(got, exact), 3 * (rounding + 6000 * 0x1p-24) * exact.norm().item<double>()) << name << ' ' << level;
    }
  }
}

TEST_F(CpuLayers, AttentionsBackwardRunsInFloat32UnlessNativeIsRequested) {
  for (const char* way : {"auto", "native"}) {
    auto handle = amp::initialize(net_, "O5", quiet().cpu_16bit(way));
    const Tensor q = torch::randn({2, 3, 8, 16}).to(at::kBFloat16).requires_grad_();
    const Tensor mixed = at::scaled_dot_product_attention(q, q, q);
    const amp::trace trace;
    mixed.sum().backward();
    size_t in_float32 = 0;
    for (const auto& op : trace.ops()) in_float32 += op.in_float32;
    EXPECT_EQ(in_float32, way == std::string("auto") ? 1u : 0u) << trace;
    amp::reset();
  }
}

}  // namespace
}  // namespace apex::test
