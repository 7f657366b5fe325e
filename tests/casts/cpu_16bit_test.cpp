// Products of 16-bit CPU tensors computed in FP32 (cpu_16bit): results are rounded once, forward and backward, and only
// 16-bit tensors are saved.
#include <ATen/cpu/Utils.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <cstdlib>
#include <functional>
#include <thread>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using at::ScalarType;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

const char* level_of(ScalarType type) { return type == at::kHalf ? "O1" : "O4"; }

struct EnvironmentSays {
  explicit EnvironmentSays(const char* value) { setenv("APEX_CPP_CPU_16BIT", value, 1); }
  ~EnvironmentSays() { previous ? setenv("APEX_CPP_CPU_16BIT", previous->c_str(), 1) : unsetenv("APEX_CPP_CPU_16BIT"); }
  std::optional<std::string> previous =
      std::getenv("APEX_CPP_CPU_16BIT") ? std::optional<std::string>(std::getenv("APEX_CPP_CPU_16BIT")) : std::nullopt;
};

// ---- operators ----

struct Product {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  std::function<Tensor(const Tensors&)> run;
  bool has_whole_gradients = true;
};

// Each is linear in every argument, so the sum of its terms' magnitudes is its result for the arguments' magnitudes.
const std::vector<Product>& products() {
  static const std::vector<Product> all = {
      {"mm", {{5, 70}, {70, 6}}, [](const Tensors& t) { return at::mm(t[0], t[1]); }},
      {"mm transposed", {{70, 5}, {6, 70}}, [](const Tensors& t) { return at::mm(t[0].t(), t[1].t()); }},
      {"addmm", {{6}, {5, 70}, {70, 6}}, [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); }},
      {"bmm", {{3, 5, 40}, {3, 40, 6}}, [](const Tensors& t) { return at::bmm(t[0], t[1]); }},
      {"baddbmm", {{3, 5, 6}, {3, 5, 40}, {3, 40, 6}}, [](const Tensors& t) { return at::baddbmm(t[0], t[1], t[2]); }},
      {"addbmm", {{5, 6}, {3, 5, 40}, {3, 40, 6}}, [](const Tensors& t) { return at::addbmm(t[0], t[1], t[2]); }},
      {"mv", {{5, 70}, {70}}, [](const Tensors& t) { return at::mv(t[0], t[1]); }},
      {"addmv", {{5}, {5, 70}, {70}}, [](const Tensors& t) { return at::addmv(t[0], t[1], t[2]); }},
      {"dot", {{70}, {70}}, [](const Tensors& t) { return at::dot(t[0], t[1]); }},
      {"matmul", {{2, 3, 5, 40}, {40, 6}}, [](const Tensors& t) { return at::matmul(t[0], t[1]); }},
      {"linear", {{2, 5, 40}, {6, 40}, {6}}, [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }},
      {"einsum",
       {{2, 5, 40}, {2, 40, 6}},
       [](const Tensors& t) {
         return at::einsum("bij,bjk->bik", {t[0], t[1]});
       }},
      {"conv1d", {{2, 4, 9}, {6, 4, 3}, {6}}, [](const Tensors& t) { return at::conv1d(t[0], t[1], t[2]); }},
      {"conv2d", {{2, 4, 9, 8}, {6, 4, 3, 3}, {6}}, [](const Tensors& t) { return at::conv2d(t[0], t[1], t[2], 2, 1); }},
      {"conv2d grouped",
       {{2, 4, 9, 8}, {6, 2, 3, 3}},
       [](const Tensors& t) {
         return at::conv2d(t[0], t[1], {}, {1, 1}, at::IntArrayRef{0, 0}, {1, 1}, 2);
       }},
      {"conv_transpose1d with a bias",
       {{2, 4, 9}, {4, 3, 3}, {6}},
       [](const Tensors& t) { return at::conv_transpose1d(t[0], t[1], t[2], 2, 1, 1, 2); }},
      {"conv3d", {{2, 3, 5, 5, 5}, {4, 3, 3, 3, 3}, {4}}, [](const Tensors& t) { return at::conv3d(t[0], t[1], t[2]); }},
      {"conv_transpose2d", {{2, 4, 5, 5}, {4, 6, 3, 3}}, [](const Tensors& t) { return at::conv_transpose2d(t[0], t[1]); }},
      {"conv_tbc", {{7, 2, 4}, {3, 4, 6}, {6}}, [](const Tensors& t) { return at::conv_tbc(t[0], t[1], t[2]); }, false},
  };
  return all;
}

/// The result and the gradients of all arguments.
Tensors results_of(const Product& product, const Tensors& inputs, ScalarType type, const Tensor& output_grad) {
  Tensors leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.to(type).detach().clone().requires_grad_());
  const Tensor output = product.run(leaves);
  output.backward(output_grad.to(type));
  Tensors results{output.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

Tensors magnitudes(Tensors tensors) {
  for (Tensor& tensor : tensors) tensor = tensor.abs();
  return tensors;
}

class CpuProducts : public AmpTest, public ::testing::WithParamInterface<ScalarType> {
 protected:
  // Half a unit in the last place, relative, and half the smallest subnormal, absolute.
  static double rounding() { return GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8; }
  static double smallest() { return GetParam() == at::kHalf ? 0x1p-25 : 0x1p-134; }
};

TEST_P(CpuProducts, EqualFloat32RoundedOnceForwardAndBackward) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, level_of(GetParam()), quiet().cpu_16bit("float32"));
  for (const auto& product : products()) {
    Tensors inputs;
    for (const auto& shape : product.shapes) inputs.push_back(torch::randn(shape).to(GetParam()));
    const Tensor grad = torch::randn_like(product.run(inputs));
    const Tensors got = results_of(product, inputs, GetParam(), grad);
    const amp::disable_casts off;
    const Tensors float32 = results_of(product, inputs, at::kFloat, grad);
    const Tensors exact = results_of(product, inputs, at::kDouble, grad);
    const Tensors terms = results_of(product, magnitudes(inputs), at::kDouble, grad.abs());
    // LibTorch accumulates the gradients of conv_tbc in 16 bits, one filter tap after the other.
    for (size_t i = 0; i < (product.has_whole_gradients ? got.size() : 1); ++i) {
      EXPECT_TRUE(at::equal(got[i], float32[i].to(GetParam()))) << product.name << ", result " << i;
      // No sum here has more than 256 terms, each of which adds an error of FP32's half step at most; then one rounding.
      const Tensor bound = exact[i].abs() * rounding() + terms[i] * (256 * 0x1p-24 * (1 + rounding())) + smallest();
      EXPECT_TRUE(((got[i].to(at::kDouble) - exact[i]).abs() <= bound).all().item<bool>()) << product.name << ", result " << i;
    }
  }
}

TEST_P(CpuProducts, InPlaceProductsAreRoundedOnce) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, level_of(GetParam()), quiet().cpu_16bit("float32"));
  const Tensor a = torch::randn({5, 70}).to(GetParam()), b = torch::randn({70, 6}).to(GetParam());
  const Tensor start = torch::randn({5, 6}).to(GetParam());
  Tensor got = start.clone();
  const amp::trace trace;
  got.addmm_(a, b);
  ASSERT_EQ(trace.ops().size(), 1u);
  EXPECT_TRUE(trace.ops()[0].in_float32);
  const amp::disable_casts off;
  EXPECT_TRUE(at::equal(got, at::addmm(start.to(at::kFloat), a.to(at::kFloat), b.to(at::kFloat)).to(GetParam())));
}

TEST_P(CpuProducts, OverloadsThatWriteToAnOutTensorStayNative) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, level_of(GetParam()), quiet().cpu_16bit("float32"));
  const Tensor ones = torch::ones({3, 3}, GetParam());
  Tensor out = torch::empty_like(ones);
  const amp::trace trace;
  at::mm_out(out, ones, ones);
  ASSERT_EQ(trace.ops().size(), 1u);
  EXPECT_FALSE(trace.ops()[0].in_float32);
  EXPECT_TRUE(at::equal(out, torch::full_like(ones, 3)));
}

TEST_P(CpuProducts, BackwardOnAnotherThreadRunsInFloat32) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level_of(GetParam()), quiet().cpu_16bit("float32"));
  const Tensor loss = net->forward(features()).sum();
  size_t in_float32 = 0;
  std::thread([&, &opt = opt] {
    const amp::trace trace;
    amp::scale_loss(loss, opt).backward();
    for (const auto& op : trace.ops()) in_float32 += op.in_float32;
  }).join();
  EXPECT_EQ(in_float32, 3u) << "of each weight, and of the layer between";
}

TEST_P(CpuProducts, AttentionIsRoundedOnce) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, level_of(GetParam()), quiet().cpu_16bit("float32"));
  const Tensor q = torch::randn({2, 3, 8, 16}).to(GetParam()).requires_grad_();
  const amp::trace trace;
  const Tensor got = at::scaled_dot_product_attention(q, q, q);
  got.sum().backward();
  EXPECT_EQ(got.scalar_type(), GetParam());
  size_t in_float32 = 0;
  for (const auto& op : trace.ops()) in_float32 += op.in_float32;
  EXPECT_EQ(in_float32, 2u) << "forward and backward\n" << trace;
  const Tensor wide = q.detach().to(at::kFloat).requires_grad_();
  const amp::disable_casts off;
  const Tensor expected = at::scaled_dot_product_attention(wide, wide, wide);
  expected.sum().backward();
  EXPECT_TRUE(at::equal(got, expected.to(GetParam())));
  // Backward uses the saved, rounded output: that rounding's error in sums of 16 terms. The three gradients are rounded and
  // then added.
  const Tensor bound = 32 * rounding() * wide.grad().abs().max();
  EXPECT_LE((q.grad().to(at::kFloat) - wide.grad()).abs().max().item<float>(), bound.item<float>());
}

TEST_P(CpuProducts, RecurrentLayersRunEntirelyInFloat32) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 5).num_layers(2).bidirectional(true));
  torch::nn::LSTM wide(torch::nn::LSTMOptions(6, 5).num_layers(2).bidirectional(true));
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < lstm->parameters().size(); ++i) {
      wide->parameters()[i].copy_(lstm->parameters()[i].copy_(lstm->parameters()[i].to(GetParam())));
    }
  }
  const Tensor x = torch::randn({4, 2, 6}).to(GetParam()).to(at::kFloat);
  const Tensor expected = std::get<0>(wide(x));
  expected.sum().backward();
  auto net = amp::initialize(lstm, GetParam() == at::kHalf ? "O3" : "O5", quiet().cpu_16bit("float32"));
  const Tensor got = std::get<0>(net(x));
  const amp::trace trace;
  got.sum().backward();
  EXPECT_TRUE(at::equal(got, expected.to(GetParam()).to(got.scalar_type())));
  for (size_t i = 0; i < lstm->parameters().size(); ++i) {
    EXPECT_EQ(lstm->parameters()[i].scalar_type(), GetParam());
    EXPECT_TRUE(at::equal(lstm->parameters()[i].grad(), wide->parameters()[i].grad().to(GetParam()))) << i;
  }
}

// The mean of 5000 neighbours, as in a graph network. In 16 bits such a sum stands still at a fraction of it, and LibTorch has
// no product of CSR matrices in FP16.
TEST_P(CpuProducts, SparseProductsAreAddedInFloat32) {
  torch::nn::Linear net(2, 2);
  const Tensor weights = torch::full({2, 5000}, 1.0 / 4096).to(GetParam()), x = torch::linspace(0.5, 1, 10000).view({5000, 2});
  const Tensor low = x.to(GetParam());
  const Tensor exact = weights.to(at::kDouble).mm(low.to(at::kDouble));
  auto handle = amp::initialize(net, level_of(GetParam()), quiet());
  for (const Tensor& sparse : {weights.to_sparse(), weights.to_sparse_csr()}) {
    const Tensor dense = low.detach().requires_grad_();
    const Tensor y = at::mm(sparse, dense);
    // Rounded once, after 5000 roundings of 2^-24 of a sum of positive numbers.
    EXPECT_TRUE(at::allclose(y.to(at::kDouble), exact, (GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8) + 5000 * 0x1p-24, 0)) << y;
    EXPECT_EQ(y.scalar_type(), GetParam());
    y.sum().backward();
    EXPECT_TRUE(at::equal(dense.grad(), torch::full_like(low, 2.0 / 4096)));
  }
  const Tensor rectified = at::relu(weights.neg().to_sparse());
  EXPECT_TRUE(at::equal(rectified.to_dense(), torch::zeros_like(weights))) << "our kernels leave sparse tensors to LibTorch";
}

TEST_P(CpuProducts, AMixOfTypesIsStillLibTorchsError) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, level_of(GetParam()), quiet().cpu_16bit("float32"));
  const amp::disable_casts off;
  const Tensor low = torch::ones({3, 3}, GetParam());
  EXPECT_THROW(at::mm(low, torch::ones({3, 3})), c10::Error);
  EXPECT_THROW(at::mm(low, torch::ones({4, 3}, GetParam())), c10::Error);
  const Tensor heads = torch::ones({1, 1, 2, 4}, GetParam()), wide = heads.to(at::kFloat);
  EXPECT_THROW(at::_scaled_dot_product_flash_attention_for_cpu(heads, wide, heads), c10::Error) << "the keys";
  EXPECT_THROW(at::_scaled_dot_product_flash_attention_for_cpu(heads, heads, wide), c10::Error) << "the values";
}

INSTANTIATE_TEST_SUITE_P(Types, CpuProducts, ::testing::Values(at::kHalf, at::kBFloat16),
                         [](const auto& instance) { return c10::toString(instance.param); });

// ---- models ----

bool is_product(const std::string& name) {
  for (const char* product : {"aten::conv2d", "aten::linear", "aten::addmm", "aten::mm", "aten::convolution_backward"}) {
    if (name == product) return true;
  }
  return false;
}

template <class Net, class Optimizer>
void train_a_step(Net& net, Optimizer& opt) {
  const Tensor output = net->forward(images()).to(at::kFloat);
  auto scaled_loss = amp::scale_loss(output.square().mean(), opt);
  scaled_loss.backward();
}

class CpuModel : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  /// The products of a step, through the handle or the original.
  std::vector<amp::TracedOp> products_of_a_step(const amp::InitializeOptions& options, bool by_handle) {
    ConvNet model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ConvNet original = model;
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), options);
    amp::trace trace;
    by_handle ? train_a_step(net, opt) : train_a_step(original, opt);
    trace.stop();
    opt.step();
    std::vector<amp::TracedOp> found;
    for (const auto& op : trace.ops()) {
      if (is_product(op.name)) found.push_back(op);
    }
    return found;
  }
};

TEST_P(CpuModel, EveryProductOfAStepUsesTheRequestedMode) {
  for (const bool by_handle : {true, false}) {
    for (const char* way : {"float32", "native"}) {
      const auto ops = products_of_a_step(quiet().cpu_16bit(way), by_handle);
      EXPECT_GE(ops.size(), 5u);
      for (const auto& op : ops) EXPECT_EQ(op.in_float32, way == std::string("float32")) << op.name << " " << op.backward;
      amp::reset();
    }
  }
}

// The thread has no casts any more; a block's backward pass uses the rules of its own session.
TEST_P(CpuModel, AHandleOfAnEarlierSessionKeepsItsMode) {
  for (const bool resets : {true, false}) {
    ConvNet model, other;
    torch::optim::SGD optimizer(model->parameters(), 0.1), of_other(other->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().cpu_16bit("float32"));
    if (resets) {
      amp::reset();
    } else {
      const auto later = amp::initialize(other, of_other, "O0", quiet());
    }
    amp::trace trace;
    train_a_step(net, opt);
    trace.stop();
    int backward = 0;
    for (const auto& op : trace.ops()) {
      if (!is_product(op.name)) continue;
      EXPECT_TRUE(op.in_float32) << op.name << " " << op.backward << " " << resets;
      backward += op.backward;
    }
    EXPECT_GE(backward, 3);
  }
}

TEST_P(CpuModel, AThreadThatUsesTheHandleUsesTheSameMode) {
  ConvNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().cpu_16bit("float32"));
  std::vector<amp::TracedOp> ops;
  std::thread thread([&ops, &handle = net, &trained = opt] {
    const amp::trace trace;
    train_a_step(handle, trained);
    ops = trace.ops();
  });
  thread.join();
  size_t products = 0;
  for (const auto& op : ops) {
    if (!is_product(op.name)) continue;
    EXPECT_TRUE(op.in_float32) << op.name;
    ++products;
  }
  EXPECT_GE(products, 5u);
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuModel, ::testing::Values("O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& instance) { return std::string(instance.param); });

int64_t bytes_kept_by_forward(const char* way) {
  const auto memory = std::make_shared<amp::detail::TensorMemory>();
  const amp::detail::Counting counting(memory);
  torch::manual_seed(1);
  Mlp model(64, 32);
  auto net = amp::initialize(model, "O5", quiet().cpu_16bit(way));
  const Tensor x = torch::randn({128, 64}).to(at::kBFloat16);
  net->forward(x);  // fills oneDNN's caches
  const int64_t before = memory->live();
  const Tensor output = net->forward(x);
  return memory->live() - before;
}

TEST_F(AmpTest, BackwardSavesAsManyBytesAsNatively) {
  EXPECT_GT(bytes_kept_by_forward("native"), 0);
  amp::reset();
  const int64_t native = bytes_kept_by_forward("native");
  amp::reset();
  EXPECT_EQ(bytes_kept_by_forward("float32"), native);
}

// ---- option, environment and automatic choice ----

std::string printed_by_initialize(const char* level, const amp::InitializeOptions& options) {
  torch::nn::Linear net(2, 2);
  ::testing::internal::CaptureStdout();
  const auto handle = amp::initialize(net, level, options);
  return ::testing::internal::GetCapturedStdout();
}

TEST_F(AmpTest, InitializePrintsTheModeAndTheReason) {
  const amp::InitializeOptions loud = amp::InitializeOptions().verbosity(1);
  const std::string printed_native = printed_by_initialize("O5", amp::InitializeOptions(loud).cpu_16bit("native"));
  EXPECT_TRUE(contains(printed_native, "BFloat16 operators on the CPU are native: as cpu_16bit asks for"));
  const EnvironmentSays environment("float32");
  const std::string by_environment = printed_by_initialize("O2", loud);
  EXPECT_TRUE(contains(by_environment, "Half operators on the CPU compute in FP32: as APEX_CPP_CPU_16BIT asks for"));
  EXPECT_EQ(printed_by_initialize("O0", loud).find("operators on the CPU"), std::string::npos);
}

TEST_F(AmpTest, AutoChoosesOnceAndPrintsTheReason) {
  const EnvironmentSays environment("auto");
  const auto line_of = [](const char* level) {
    const std::string text = printed_by_initialize(level, amp::InitializeOptions().verbosity(1));
    const auto at = text.find("operators on the CPU ");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  for (const auto& [level, instructions] : {std::pair("O1", "FP16"), std::pair("O4", "BF16")}) {
    const std::string line = line_of(level);
    EXPECT_TRUE(contains(line, "this processor has no") || contains(line, "keeps oneDNN from") ||
                contains(line, "the products of a step take"))
        << line;
    EXPECT_TRUE(contains(line, instructions)) << "those of the level's type";
    EXPECT_EQ(line_of(level), line);
    const std::string before_ratio = "the products of a step take ";
    const auto begin = line.find(before_ratio);
    if (begin == std::string::npos) continue;
    // In a cycle AMX, the fastest, multiplies 16 times as many 16-bit numbers as AVX512 multiplies FP32 numbers.
    EXPECT_GT(std::stod(line.substr(begin + before_ratio.size())), 0.01) << line;
  }
}

// As LibTorch finds them. A processor without any is said to have none of them.
TEST_F(AmpTest, AutoNamesTheInstructionsThatTheProcessorHas) {
  const EnvironmentSays environment("auto");
  const auto capabilities = at::cpu::get_cpu_capabilities();
  struct Instructions {
    const char *level, *capability, *name;
  };
  for (const auto& [level, capability, name] :
       {Instructions{"O1", "avx512_fp16", "AVX512-FP16"}, Instructions{"O1", "amx_fp16", "AMX-FP16"},
        Instructions{"O4", "avx512_bf16", "AVX512-BF16"}, Instructions{"O4", "amx_bf16", "AMX-BF16"}}) {
    const auto found = capabilities.find(capability);
    const bool has = found != capabilities.end() && found->second.toBool();
    const std::string text = printed_by_initialize(level, amp::InitializeOptions().verbosity(1));
    EXPECT_EQ(contains(text, name) && !contains(text, "this processor has no"), has) << name << " in: " << text;
  }
}

TEST_F(AmpTest, AnUnknownModeIsAnErrorThatListsTheThree) {
  torch::nn::Linear net(2, 2);
  EXPECT_TRUE(contains(message_of([] { amp::InitializeOptions().cpu_16bit("fast"); }), "auto, native or float32"));
  const EnvironmentSays environment("fast");
  const std::string message = message_of([&] { (void)amp::initialize(net, "O1", quiet()); });
  EXPECT_TRUE(contains(message, "APEX_CPP_CPU_16BIT=fast"));
  EXPECT_TRUE(contains(message, "auto, native or float32"));
  EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
}

TEST_F(AmpTest, ModeAppliesOnlyToLevelsThatCast) {
  const auto computes_in_float32 = [](at::ScalarType type) {
    const Tensor low = torch::ones({3, 3}, type);
    const amp::trace trace;
    at::mm(low, low);
    return trace.ops()[0].in_float32;
  };
  EXPECT_FALSE(computes_in_float32(at::kBFloat16));
  torch::nn::Linear net(2, 2);
  {
    auto handle = amp::initialize(net, "O5", quiet().cpu_16bit("float32"));
    EXPECT_TRUE(computes_in_float32(at::kBFloat16));
    EXPECT_FALSE(computes_in_float32(at::kHalf)) << "the other 16-bit type is not the level's";
  }
  amp::reset();
  EXPECT_FALSE(computes_in_float32(at::kBFloat16));
  auto without_casts = amp::initialize(net, "O0", quiet().cpu_16bit("float32"));
  EXPECT_FALSE(computes_in_float32(at::kBFloat16)) << "O0";
}

// This thread still calls amp's kernels, which find no rules.
TEST_F(AmpTest, AResetOnAnotherThreadEndsTheModeHere) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, "O5", quiet().cpu_16bit("float32"));
  std::thread([] { amp::reset(); }).join();
  const Tensor low = torch::ones({64, 64}, at::kBFloat16);
  const amp::trace trace;
  const Tensor product = at::mm(low, low);
  ASSERT_EQ(trace.ops().size(), 1u);
  EXPECT_FALSE(trace.ops()[0].in_float32);
  EXPECT_TRUE(at::equal(product, torch::full_like(low, 64)));
  EXPECT_TRUE(at::equal(at::relu(low), low));
}

}  // namespace
}  // namespace apex::test
