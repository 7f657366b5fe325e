// Operators that LibTorch lacks for 16-bit dtypes: they run in FP32 wherever amp has made tensors 16-bit.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "tests/amp/support.h"
#include "tests/libtorch_2_15.h"

namespace apex::test {
namespace {

using torch::Tensor;
using Outputs = std::vector<Tensor>;

// A well-conditioned matrix, a lower triangular one, a vector and a matrix of numbers in (0, 1); all exact in 16 bits.
enum Sample { kMatrix, kTriangle, kVector, kRectangle };
const Tensor& sample(Sample which) {
  static const std::vector<Tensor> samples = [] {
    const Tensor ramp = torch::arange(16, torch::kFloat).view({4, 4}).div(32);
    const Tensor matrix = ramp + ramp.t() + 4 * torch::eye(4);
    return std::vector<Tensor>{matrix, matrix.tril(), torch::arange(1, 5).div(8), ramp + 0.5};
  }();
  return samples.at(which);
}

// Calls an operator with inputs of a given dtype.
struct Widened {
  std::string name;  // without aten::
  std::function<Outputs(at::ScalarType)> call;
};

// By its schema: tensors in order, then values for arguments without a default.
Outputs call_by_schema(const std::string& name, const std::vector<Sample>& tensors, const std::vector<c10::IValue>& values,
                       at::ScalarType type) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), "");
  torch::jit::Stack stack;
  size_t next_tensor = 0, next_value = 0;
  for (const auto& argument : op.schema().arguments()) {
    if (argument.type()->kind() == c10::TensorType::Kind && next_tensor < tensors.size()) {
      stack.emplace_back(sample(tensors[next_tensor++]).to(type));
    } else {
      stack.push_back(argument.default_value() ? *argument.default_value() : values.at(next_value++));
    }
  }
  op.callBoxed(&stack);
  Outputs results;
  for (const auto& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
  }
  return results;
}

template <class... Tensors>
Outputs list_of(const std::tuple<Tensors...>& results) {
  return std::apply([](const auto&... each) { return Outputs{each...}; }, results);
}

// Factors and pivots, the former exact in 16 bits.
std::tuple<Tensor, Tensor> in_16_bits(const std::tuple<Tensor, Tensor>& factors) {
  return {std::get<0>(factors).to(torch::kBFloat16), std::get<1>(factors)};
}

std::vector<Widened> widened_operators() {
  std::vector<Widened> calls;
  const auto add = [&](const char* names, const std::vector<Sample>& tensors, const std::vector<c10::IValue>& values = {}) {
    std::istringstream words(names);
    for (std::string name; words >> name;) {
      if (::test::is_dropped("aten::" + name)) continue;
      calls.push_back({name, [=](at::ScalarType type) { return call_by_schema(name, tensors, values, type); }});
    }
  };
  add("cholesky cholesky_inverse det geqrf inverse linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig "
      "linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex linalg_lu "
      "linalg_lu_factor linalg_lu_factor_ex linalg_qr linalg_slogdet linalg_svd linalg_svdvals linalg_vander logdet "
      "_lu_with_info pinverse qr slogdet svd",
      {kMatrix});
  add("linalg_matrix_power matrix_power", {kMatrix}, {-1});
  add("linalg_matrix_rank linalg_pinv", {kMatrix}, {0.5});
  add("cholesky_solve linalg_solve linalg_solve_ex triangular_solve", {kMatrix, kTriangle});
  add("linalg_tensorsolve", {kMatrix, kVector});
  add("linalg_solve_triangular", {kTriangle, kMatrix}, {false});
  add("linalg_householder_product orgqr", {kMatrix, kVector});
  add("ormqr", {kMatrix, kVector, kRectangle});
  add("angle histc special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx "
      "special_i1 special_i1e special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 "
      "special_modified_bessel_k0 "
      "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
      "special_spherical_bessel_j0",
      {kVector});
  add("complex igamma igammac nanquantile polar quantile special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
      "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h "
      "special_hermite_polynomial_he "
      "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t "
      "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
      "special_zeta",
      {kVector, kVector});
  add("cdist", {kRectangle, kMatrix});
  add("fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn "
      "fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn pdist _pdist_forward",
      {kRectangle});
  const auto with = [&](const char* name, const std::function<Outputs(at::ScalarType)>& call) {
    calls.push_back({name, call});
  };
  with("_cdist_forward", [](auto type) -> Outputs {
    return {torch::_cdist_forward(sample(kRectangle).to(type), sample(kMatrix).to(type), 2, std::nullopt)};
  });
  with("rrelu", [](auto type) -> Outputs {
    torch::manual_seed(1);
    return {torch::rrelu(-sample(kVector).to(type), 0.125, 0.25, /*training=*/true)};
  });
  with("linalg_lstsq", [](auto type) -> Outputs {  // of the default driver's result the last bits change from call to call
    return {std::get<0>(torch::linalg_lstsq(sample(kMatrix).to(type), sample(kTriangle).to(type), std::nullopt, "gelsd"))};
  });
  with("linalg_tensorinv", [](auto type) -> Outputs { return {torch::linalg_tensorinv(sample(kMatrix).to(type), 1)}; });
  with("linalg_matrix_norm", [](auto type) -> Outputs { return {torch::linalg_matrix_norm(sample(kMatrix).to(type), "nuc")}; });
  with("linalg_lu_solve", [](auto type) -> Outputs {
    const auto [lu, pivots] = in_16_bits(torch::linalg_lu_factor(sample(kMatrix)));
    return {torch::linalg_lu_solve(lu.to(type), pivots, sample(kTriangle).to(type))};
  });
  with("lu_solve", [](auto type) -> Outputs {
    const auto [lu, pivots] = in_16_bits(torch::linalg_lu_factor(sample(kMatrix)));
    return {torch::lu_solve(sample(kTriangle).to(type), lu.to(type), pivots)};
  });
  with("linalg_ldl_solve", [](auto type) -> Outputs {
    const auto [ld, pivots] = in_16_bits(torch::linalg_ldl_factor(sample(kMatrix)));
    return {torch::linalg_ldl_solve(ld.to(type), pivots, sample(kTriangle).to(type))};
  });
  with("histogram", [](auto type) { return list_of(torch::histogram(sample(kVector).to(type), 4)); });
  with("histogramdd", [](auto type) -> Outputs { return {std::get<0>(torch::histogramdd(sample(kRectangle).to(type), 4))}; });
  with("_ctc_loss", [](auto type) -> Outputs {  // which ctc_loss calls
    const Tensor targets = torch::tensor({{1, 2}});
    return {torch::ctc_loss(sample(kRectangle).unsqueeze(1).to(type), targets, at::IntArrayRef{4}, at::IntArrayRef{2})};
  });
  with("stft", [](auto type) -> Outputs {
    return {torch::stft(sample(kRectangle).to(type), 4, 2, 4, sample(kVector).to(type), false, false, true)};
  });
  return calls;
}

const std::vector<Widened>& widened() {
  static const std::vector<Widened> calls = widened_operators();
  return calls;
}

TEST(WidenedOperators, AreExactlyTheListedOnes) {
  std::set<std::string> listed, called;
  for (const auto& [name, policy] : opt_levels::CastLists::built_in().match()) {
    if (policy == opt_levels::CastPolicy::widen && !::test::is_dropped(name)) listed.insert(name);
  }
  for (const auto& each : widened()) called.insert("aten::" + each.name);
  EXPECT_EQ(called, listed);
}

// An operator that LibTorch starts to support in 16 bits can be removed from the list.
TEST(WidenedOperators, AreErrorsInLibTorch) {
  const std::set<std::string> refused_on_cuda{"angle", "histc", "igamma", "igammac"},
      refused_in_backward{"special_i1", "special_i1e"};
  for (const auto& each : widened()) {
    if (refused_on_cuda.count(each.name) + refused_in_backward.count(each.name) > 0) continue;
    int refusals = 0;
    for (const auto type : {torch::kHalf, torch::kBFloat16}) refusals += !message_of([&] { each.call(type); }).empty();
    EXPECT_GT(refusals, 0) << each.name;
  }
}

/// A model whose forward runs the test's code.
struct RunsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (code) code();
    return fc(x);
  }
  std::function<void()> code;
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
};
TORCH_MODULE(Runs);

struct Widening : AmpTest, ::testing::WithParamInterface<const char*> {
  at::ScalarType low() const {
    const std::string level = GetParam();
    return level >= "O4" ? torch::kBFloat16 : torch::kHalf;
  }
  // In a handle's forward, and after it.
  void run(const std::function<void(const char* where)>& check) {
    Runs model(std::make_shared<RunsImpl>());
    auto net = amp::initialize(model, GetParam(), quiet());
    net->code = [&] { check(", in a forward"); };
    net->forward(features());
    check(", behind a forward");
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, Widening, ::testing::Values("O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

/// The reference is the operator without amp on the same values in FP32.
TEST_P(Widening, RunsInFloat32) {
  std::vector<Outputs> plain;
  for (const auto& each : widened()) plain.push_back(each.call(torch::kFloat));
  run([&](const char* where) {
    for (size_t i = 0; i < widened().size(); ++i) {
      const Outputs got = widened()[i].call(low());
      ASSERT_EQ(got.size(), plain[i].size());
      for (size_t k = 0; k < got.size(); ++k) {
        EXPECT_EQ(got[k].scalar_type(), plain[i][k].scalar_type()) << widened()[i].name << where;
        EXPECT_EQ(bytes_of(got[k]), bytes_of(plain[i][k])) << widened()[i].name << where;
      }
    }
  });
}

TEST_P(Widening, GivesFloat32GradientsRoundedOnce) {
  using Unary = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<const char*, Unary>> calls = {
      {"inv", [](auto& x) { return torch::linalg_inv(x); }},
      {"det", [](auto& x) { return torch::det(x); }},
      {"solve", [](auto& x) { return torch::linalg_solve(x, sample(kTriangle)); }},
      {"cholesky", [](auto& x) { return torch::linalg_cholesky(x); }},
      {"rfft", [](auto& x) { return torch::fft_rfft(x).abs(); }},
      {"i1", [](auto& x) { return torch::special_i1(x); }},
      {"cdist", [](auto& x) { return torch::cdist(x, x.detach() + 1); }},
      {"quantile", [](auto& x) { return torch::quantile(x, 0.5); }},
      {"nuclear norm", [](auto& x) { return torch::nuclear_norm(x); }},
  };
  const auto grad_of = [](const Unary& call, at::ScalarType type) {
    const Tensor x = sample(kMatrix).to(type).detach().clone().requires_grad_();
    call(x).sum().backward();
    return x.grad();
  };
  std::vector<Tensor> plain;
  for (const auto& [name, call] : calls) plain.push_back(grad_of(call, torch::kFloat));
  run([&](const char* where) {
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_TRUE(torch::equal(grad_of(calls[i].second, low()), plain[i].to(low()))) << calls[i].first << where;
    }
  });
}

TEST_P(Widening, KeepsFloat64AndPromotesMixedInputsToIt) {
  run([&](const char* where) {
    const Tensor wide = sample(kMatrix).to(torch::kDouble).requires_grad_();
    EXPECT_EQ(torch::linalg_inv(wide).scalar_type(), torch::kDouble) << where;
    EXPECT_EQ(torch::linalg_solve(wide, sample(kMatrix).to(low())).scalar_type(), torch::kDouble) << where;
  });
}

/// Operators with 16-bit kernels only for CUDA keep their dtype: computed in FP32, rounded once.
TEST_P(Widening, OperatorsWith16BitKernelsOnlyForCudaKeepTheirDtype) {
  using Unary = std::function<Tensor(const Tensor&)>;
  const Tensor pixels = torch::arange(64, torch::kFloat).div(64).view({1, 4, 4, 4});
  const std::vector<std::pair<const char*, Unary>> calls = {
      {"avg_pool3d", [](auto& x) { return torch::avg_pool3d(x, 2); }},
      {"trace",
       [](auto& x) {
         return torch::trace(x.view({8, 8}));
       }},
      {"multi_margin_loss",
       [](auto& x) {
         return at::_ops::multi_margin_loss::call(x.view({16, 4}), torch::zeros({16}, torch::kLong), 1, 1, {}, 1);
       }},
      {"bilinear",
       [](auto& x) {
         return torch::_upsample_bilinear2d_aa(x, {3, 3}, false);
       }},
      {"bicubic",
       [](auto& x) {
         return torch::_upsample_bicubic2d_aa(x, {3, 3}, false);
       }},
  };
  const auto forward_and_back = [&](const Unary& call, at::ScalarType type) {
    const Tensor x = pixels.to(type).detach().clone().requires_grad_();
    const Tensor result = call(x);
    result.backward(torch::ones_like(result));
    return Outputs{result.detach(), x.grad()};
  };
  std::vector<Outputs> plain;
  for (const auto& [name, call] : calls) plain.push_back(forward_and_back(call, torch::kFloat));
  run([&](const char* where) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const Outputs got = forward_and_back(calls[i].second, low());
      for (size_t k = 0; k < got.size(); ++k) {
        EXPECT_TRUE(torch::equal(got[k].to(low()), plain[i][k].to(low()))) << calls[i].first << where;
      }
    }
    const Tensor pooled = torch::avg_pool3d(pixels.to(low()), 2);
    EXPECT_EQ(pooled.scalar_type(), low()) << where;
  });
}

// A trace tells which operators on 16-bit tensors computed in FP32. On FP32 tensors every operator does.
TEST_P(Widening, ATraceMarksOnlyOperatorsOn16BitTensors) {
  const Tensor pixels = torch::ones({1, 4, 4, 4});
  run([&](const char* where) {
    const amp::disable_casts off;
    for (const auto type : {low(), torch::kFloat}) {
      const Tensor input = pixels.to(type);
      const amp::trace trace;
      torch::avg_pool3d(input, 2);
      ASSERT_EQ(trace.ops().size(), 1u) << where;
      EXPECT_EQ(trace.ops()[0].in_float32, type == low()) << type << where;
    }
  });
}

TEST_P(Widening, AnErrorInAForwardNamesTheOperatorAndTheRemedy) {
  Runs model(std::make_shared<RunsImpl>());
  auto net = amp::initialize(model, GetParam(), quiet());
  const auto refused = [&](const std::function<void()>& code) {
    net->code = code;
    return message_of<c10::Error>([&] { net->forward(features()); });
  };
  const Tensor matrix = sample(kMatrix).to(low()).detach();
  const std::string in_place = refused([&] {
    Tensor result = matrix.clone();
    torch::linalg_inv_out(result, matrix);
  });
  EXPECT_TRUE(contains(in_place, "linalg.inv: Low precision dtypes not supported")) << "LibTorch's own text";
  EXPECT_TRUE(contains(in_place, "aten::linalg_inv does not take 16-bit tensors"));
  EXPECT_TRUE(contains(in_place, "call the function that returns a new tensor, and name it in"));
  EXPECT_TRUE(contains(in_place, "float32_functions({\"aten::linalg_inv\"})"));
  const std::string memory = refused([&] { matrix.data_ptr<float>(); });
  EXPECT_TRUE(contains(memory, "expected scalar type Float but found")) << "LibTorch's own text";
  EXPECT_TRUE(contains(memory, "amp::float_function"));
  EXPECT_FALSE(contains(refused([&] { torch::mm(matrix, matrix.narrow(0, 0, 2)); }), "to(torch::kFloat)")) << "another error";
}

}  // namespace
}  // namespace apex::test
