// moment_storage: FusedAdam with moments in 8 or 16 bits.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers/detail/coded_moment.h>

#include <cmath>

#include "kernels/rules/quantized.h"
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;
namespace rules = apex::kernels::rules;
using namespace apex::optimizers;
using apex::optimizers::detail::CodedMoment;
using apex::optimizers::detail::Moment;

constexpr MomentStorage kSmall[] = {MomentStorage::bfloat16, MomentStorage::int8};

TEST(MomentStorage, HasNames) {
  for (const auto storage : {MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8}) {
    EXPECT_EQ(moment_storage_named(name_of(storage)), storage);
  }
  EXPECT_NE(message_of<c10::ValueError>([] { (void)moment_storage_named("int4"); }).find("'int4'"), std::string::npos);
}

// ---- codes of a tensor, against the formula for one element ----

// Values of many magnitudes: groups of zeros, of one value, of values below the normal range, of NaN.
at::Tensor moment_values(int64_t numel, bool squares) {
  at::Tensor flat = values({numel}, 3) * values({numel}, 4).mul(40).exp2();
  flat.narrow(0, 32, 32).zero_();
  flat.narrow(0, 64, 32).mul_(1e-38).mul_(1e-6);
  flat[100] = NAN;
  return squares ? flat.square() : flat;
}

void expect_codes_of(const at::Tensor& flat, Moment moment, const at::Tensor& bytes) {
  const int64_t numel = flat.numel(), groups = rules::group_count(numel);
  const auto* const codes = bytes.const_data_ptr<uint8_t>();
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<float> sizes;
    uint32_t largest = 0;
    for (int64_t i = g * 32; i < std::min(numel, g * 32 + 32); ++i) {
      const float value = flat.const_data_ptr<float>()[i];
      sizes.push_back(moment == Moment::mean ? value : std::sqrt(value));
      largest = std::max(largest, rules::to_bits(sizes.back()) & 0x7fffffffu);
    }
    const uint32_t exponent = rules::scale_exponent(largest);
    ASSERT_EQ(codes[groups * 32 + g], exponent) << "group " << g;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const float inverse = rules::inverse_scale(exponent);
      const int expected = !rules::has_codes(exponent) ? 0
                           : moment == Moment::mean    ? rules::mean_code(sizes[i], inverse, rules::kNearest)
                                                       : rules::square_code(sizes[i], inverse, rules::kNearest);
      const int actual = moment == Moment::mean ? static_cast<int8_t>(codes[g * 32 + i]) : codes[g * 32 + i];
      ASSERT_EQ(actual, expected) << "element " << g * 32 + i;
    }
  }
}

at::Tensor value_of_code(const at::Tensor& bytes, Moment moment, int64_t numel) {
  at::Tensor result = at::empty({numel}, at::kFloat);
  const auto* const codes = bytes.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < numel; ++i) {
    const float scale = rules::scale_of(codes[rules::group_count(numel) * 32 + i / 32]);
    result.mutable_data_ptr<float>()[i] = moment == Moment::mean ? rules::mean_of_code(static_cast<int8_t>(codes[i]), scale)
                                                                 : rules::square_of_code(codes[i], scale);
  }
  return result;
}

TEST(CodedMomentOfATensor, HasTheNearestCodesAndTheirValues) {
  for (const int64_t numel : {257, 1000}) {
    for (const Moment moment : {Moment::mean, Moment::square}) {
      const at::Tensor flat = moment_values(numel, moment == Moment::square);
      CodedMoment coded(flat, moment);
      const at::Tensor bytes = coded.codes_for(flat, moment);
      ASSERT_EQ(bytes.numel(), rules::quantized_bytes(numel));
      ASSERT_NO_FATAL_FAILURE(expect_codes_of(flat, moment, bytes));
      const at::Tensor back = coded.values(moment), expected = value_of_code(bytes, moment, numel);
      EXPECT_TRUE(at::equal(back.isnan(), expected.isnan()));
      EXPECT_TRUE(same_bytes(back.nan_to_num(), expected.nan_to_num()));
    }
  }
}

TEST(CodedMomentOfATensor, GetsItsCodesBackFromItsValues) {
  for (const Moment moment : {Moment::mean, Moment::square}) {
    const at::Tensor flat = values({50000}, 7) * values({50000}, 8).mul(30).exp2();
    CodedMoment coded(moment == Moment::square ? flat.square() : flat, moment);
    CodedMoment again(coded.values(moment), moment);
    EXPECT_TRUE(same_bytes(again.codes_for(flat, moment), coded.codes_for(flat, moment)));
  }
}

TEST(CodedMomentOfATensor, FollowsTheParametersLayout) {
  const at::Tensor contiguous = values({4, 8, 3, 3}, 5), last = contiguous.contiguous(at::MemoryFormat::ChannelsLast);
  CodedMoment coded(contiguous, Moment::mean);
  const at::Tensor before = coded.values(Moment::mean);
  (void)coded.codes_for(last, Moment::mean);
  const at::Tensor after = coded.values(Moment::mean);
  EXPECT_EQ(after.strides(), last.strides());
  // Other groups have other scales: by a code of the larger one, at most half.
  EXPECT_TRUE(at::allclose(after, before, /*rtol=*/0, /*atol=*/2.0 / 127));
  EXPECT_EQ(CodedMoment(at::zeros({0, 3})).values(Moment::square).sizes(), at::IntArrayRef({0, 3}));
}

// ---- FusedAdam ----

FusedAdamOptions options_with(MomentStorage storage) {
  return FusedAdamOptions(0.01).weight_decay(0.01).moment_storage(storage);
}

FusedAdamParamState& state_of(FusedAdam& optimizer, const at::Tensor& param) {
  return static_cast<FusedAdamParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
}

std::vector<at::Tensor> moments_of(FusedAdam& optimizer, const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& param : params) {
    auto& state = state_of(optimizer, param);
    const bool coded = state.exp_avg_codes.defined();
    all.push_back(coded ? state.exp_avg_codes.values(Moment::mean) : state.exp_avg.to(at::kFloat));
    all.push_back(coded ? state.exp_avg_sq_codes.values(Moment::square) : state.exp_avg_sq.to(at::kFloat));
  }
  return all;
}

void run(const std::vector<at::Tensor>& params, FusedAdam& by, int64_t begin, int64_t end) {
  for (int64_t step = begin; step < end; ++step) {
    set_grads(params, 10 * step);
    by.step();
  }
}

TEST(MomentStorage, FirstStepIsThatOfFloat32) {
  for (const MomentStorage storage : kSmall) {
    const auto params = make_params(1), exact = make_params(1);
    FusedAdam small(params, options_with(storage)), reference(exact, options_with(MomentStorage::float32));
    run(params, small, 0, 1);
    run(exact, reference, 0, 1);
    EXPECT_TRUE(same_bytes(params, exact)) << name_of(storage);
    EXPECT_FALSE(same_bytes(moments_of(small, params), moments_of(reference, exact)));
  }
}

// Gradients become smaller after 50 of 200 steps; the mean of squares then falls by 0.1 % a step, which is less than half a
// unit of bfloat16. A rounding has a variance of at most a quarter of the unit squared, 2^-16 of the value squared, which
// changes by less than a factor of 1.2: the mean over n elements is within 6 * 1.2 * 2^-8 * sqrt(200 / n) of that of float32.
TEST(MomentStorage, FollowsGradientsThatBecomeSmaller) {
  constexpr int64_t kElements = 4096;
  const auto mean_of_squares = [&](MomentStorage storage) {
    const at::Tensor param = values({kElements}, 1).requires_grad_();
    FusedAdam optimizer({param}, FusedAdamOptions(0.001).moment_storage(storage));
    for (int step = 0; step < 200; ++step) {
      param.mutable_grad() = (values({kElements}, 10 + step).abs() + 0.5) * (step < 50 ? 1.0 : 0.01);
      optimizer.step();
    }
    return moments_of(optimizer, {param})[1].to(at::kDouble).mean().item<double>();
  };
  const double exact = mean_of_squares(MomentStorage::float32), bound = 6 * 1.2 * 0x1p-8 * std::sqrt(200.0 / kElements);
  EXPECT_NEAR(mean_of_squares(MomentStorage::bfloat16) / exact, 1, bound);
}

TEST(MomentStorage, SavedStateContinuesWithTheSameBits) {
  for (const MomentStorage storage : kSmall) {
    const auto params = make_params(1);
    FusedAdam optimizer(params, options_with(storage));
    run(params, optimizer, 0, 5);
    std::vector<at::Tensor> resumed_params;
    for (const at::Tensor& param : params) resumed_params.push_back(param.detach().clone().requires_grad_());
    FusedAdam resumed(resumed_params, options_with(storage).lr(0.5));
    load(resumed, saved(optimizer));
    EXPECT_TRUE(same_bytes(moments_of(resumed, resumed_params), moments_of(optimizer, params)));
    run(params, optimizer, 5, 9);
    run(resumed_params, resumed, 5, 9);
    EXPECT_TRUE(same_bytes(moments_of(resumed, resumed_params), moments_of(optimizer, params)));
    EXPECT_TRUE(same_bytes(resumed_params, params));
  }
}

// 0.5011 is 89.9 codes: a tenth of the groups round it to 89, which is less than half of the scale.
TEST(MomentStorage, MeansThatAStepRoundedBelowHalfOfTheirScaleAreLoadedAsTheyWere) {
  const at::Tensor param = at::zeros({512, 32}).requires_grad_(), other = at::zeros({512, 32}).requires_grad_();
  param.mutable_grad() = at::full({512, 32}, 0.1f);
  param.mutable_grad().select(1, 0).fill_(0.5011f);
  const auto options = options_with(MomentStorage::int8).betas(Betas(0, 0.999));
  FusedAdam optimizer({param}, options), resumed({other}, options);
  optimizer.step();
  EXPECT_TRUE(moments_of(optimizer, {param})[0].amax(1).lt(0.5).any().item<bool>());
  load(resumed, saved(optimizer));
  EXPECT_TRUE(same_bytes(moments_of(resumed, {other}), moments_of(optimizer, {param})));
}

TEST(MomentStorage, FilesFitEveryStorage) {
  for (const auto from : {MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8}) {
    for (const auto to : {MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8}) {
      const auto params = make_params(1);
      FusedAdam saving(params, options_with(from)), loading(params, options_with(to));
      run(params, saving, 0, 3);
      load(loading, saved(saving));
      const auto& options = static_cast<FusedAdamOptions&>(loading.param_groups()[0].options());
      EXPECT_EQ(options.moment_storage(), to);
      const auto expected = moments_of(saving, params), loaded = moments_of(loading, params);
      ASSERT_EQ(loaded.size(), expected.size());
      for (size_t i = 0; i < loaded.size(); ++i) {
        const Moment moment = i % 2 == 0 ? Moment::mean : Moment::square;
        const bool is_kept = to == MomentStorage::float32 || to == from;
        const at::Tensor stored = is_kept                         ? expected[i]
                                  : to == MomentStorage::bfloat16 ? expected[i].to(at::kBFloat16).to(at::kFloat)
                                                                  : CodedMoment(expected[i], moment).values(moment);
        EXPECT_TRUE(same_bytes(loaded[i], stored)) << name_of(from) << " to " << name_of(to) << ", moment " << i;
      }
      run(params, loading, 3, 4);
    }
  }
}

// A program may put an empty state under a parameter.
TEST(MomentStorage, AStateWithoutMomentsIsSavedAndLoadedAndStartsAtZeros) {
  for (const auto storage : {MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8}) {
    const auto params = make_params(1), loaded_params = make_params(1), fresh_params = make_params(1);
    FusedAdam saving(params, options_with(storage)), loaded(loaded_params, options_with(storage)),
        fresh(fresh_params, options_with(storage));
    for (const at::Tensor& param : params)
      saving.state()[param.unsafeGetTensorImpl()] = std::make_unique<FusedAdamParamState>();
    load(loaded, saved(saving));
    EXPECT_EQ(loaded.state().size(), params.size());
    run(loaded_params, loaded, 0, 2);
    run(fresh_params, fresh, 0, 2);
    EXPECT_TRUE(same_bytes(loaded_params, fresh_params)) << name_of(storage);
    EXPECT_TRUE(same_bytes(moments_of(loaded, loaded_params), moments_of(fresh, fresh_params))) << name_of(storage);
  }
}

TEST(MomentStorage, AStepSkippedByGradScalerChangesNoBit) {
  for (const MomentStorage storage : kSmall) {
    const auto params = make_params(1);
    FusedAdam optimizer(params, options_with(storage));
    run(params, optimizer, 0, 2);
    amp::GradScaler scaler("cpu", /*init_scale=*/1024.0);
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& param : params) loss = loss + (param * INFINITY).sum();
    const auto before = copies_of(params), moments = moments_of(optimizer, params);
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    EXPECT_TRUE(same_bytes(params, before) && same_bytes(moments_of(optimizer, params), moments));
    EXPECT_EQ(optimizer.steps_taken(), 2);
  }
}

TEST(MomentStorage, CountsStepsOnTheDeviceWithTheSameBits) {
  const auto params = make_params(1), on_device = make_params(1);
  FusedAdam host(params, options_with(MomentStorage::int8)),
      device(on_device, options_with(MomentStorage::int8).capturable(true));
  run(params, host, 0, 4);
  run(on_device, device, 0, 4);
  EXPECT_TRUE(same_bytes(moments_of(host, params), moments_of(device, on_device)));
}

TEST(MomentStorage, OfAnotherShapeIsAnError) {
  const auto params = make_params(1);
  FusedAdam optimizer(params, options_with(MomentStorage::int8));
  run(params, optimizer, 0, 1);
  params[0].set_data(at::ones({17}));
  set_grads(params, 1);
  const std::string text = message_of<c10::Error>([&] { optimizer.step(); });
  EXPECT_NE(text.find("has moments of 8 bits of shape"), std::string::npos) << text;
}

// A weight of many groups of 32 takes 2 bytes, its gradient 2, its master 1 more, its moments 33 / 32 each.
TEST(MomentStorage, TakesLittleMoreThanSevenBytesAParameterWithItsGradient) {
  nn::Linear net(64, 64);
  FusedAdam optimizer(net->parameters(),
                      FusedAdamOptions(0.01).master_storage(MasterStorage::remainder8).moment_storage(MomentStorage::int8));
  auto [model, opt] = amp::initialize(net, optimizer, "O5", amp::InitializeOptions().verbosity(0));
  opt.zero_grad();
  amp::scale_loss(model->forward(values({4, 64}, 2)).square().mean(), opt).backward();
  opt.step();
  const at::Tensor& weight = net->weight;
  auto& state = static_cast<FusedAdamParamState&>(*opt.state().at(weight.unsafeGetTensorImpl()));
  size_t bytes = weight.nbytes() + weight.grad().nbytes() + state.remainder.nbytes();
  bytes += state.exp_avg_codes.codes_for(weight, Moment::mean).nbytes();
  bytes += state.exp_avg_sq_codes.codes_for(weight, Moment::square).nbytes();
  for (const at::Tensor& none : {state.exp_avg, state.exp_avg_sq, state.master_param}) EXPECT_FALSE(none.defined());
  EXPECT_EQ(static_cast<double>(bytes) / static_cast<double>(weight.numel()), 7.0625);
}

}  // namespace
}  // namespace test
