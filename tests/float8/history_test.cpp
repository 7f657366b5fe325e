// The history of delayed scaling: scales from the largest magnitudes of earlier passes, as TransformerEngine's DelayedScaling
// computes them.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <utility>

#include "kernels/float8/float8.h"
#include "tests/amp/support.h"
#include "tests/errors.h"
#include "tests/float8/history.h"

namespace apex::test {
namespace {

using amp::detail::Float8Format;
using amp::detail::Float8History;
using amp::detail::Float8Role;
using torch::Tensor;

constexpr Float8Role kRoles[] = {Float8Role::activation, Float8Role::weight, Float8Role::gradient};
constexpr double kNoScale = 0;

/// TransformerEngine's rule for one operand, with a scale that is a power of two: fp8_max divided by the largest of the last
/// 1024 magnitudes.
class OneOperand {
 public:
  explicit OneOperand(double end) : end_(end) {}
  void add(double magnitude) {
    window_.push_back(std::isfinite(magnitude) ? magnitude : 0);
    if (window_.size() > 1024) window_.pop_front();
  }
  double scale() const {
    double largest = 0;
    for (const double each : window_) largest = std::max(largest, each);
    return largest == 0 ? kNoScale : std::exp2(std::floor(std::log2(end_ / largest)));
  }

 private:
  double end_;
  std::deque<double> window_;
};

float scale_in(const Float8History& history, const std::string& weight, Float8Role role) {
  return history.of(weight).scales[static_cast<int64_t>(role)].item<float>();
}

Tensor with_magnitude(double magnitude) {
  Tensor x = torch::zeros({2, 16}, torch::kBFloat16);
  x[1][3] = -magnitude;
  return x;
}

void record(const Float8History& history, const std::string& weight, Float8Role role, double magnitude) {
  const auto format = role == Float8Role::gradient ? Float8Format::e5m2 : Float8Format::e4m3;
  round_delayed(with_magnitude(magnitude), role, format, history.of(weight));
}

void end_pass(Float8History& history) { history.end_pass(all_rows(history), history.largest(all_rows(history))); }

/// Magnitudes that bfloat16 has, from 2^-12 to 2^12; every 40th is 0, every 50th is not finite.
double magnitude_at(int pass) {
  if (pass % 40 == 39) return 0;
  if (pass % 50 == 49) return pass % 100 == 49 ? kInf : kNan;
  return static_cast<double>(
      torch::randn({1}).abs().add(0.1).mul(torch::rand({1}).mul(24).sub(12).exp2()).to(torch::kBFloat16).item<float>());
}

// Longer than the window, so that the first magnitudes leave it.
TEST(Float8Delays, AreTransformerEnginesWithPowersOfTwo) {
  torch::manual_seed(1);
  Float8History history({"a", "b"}, torch::kCPU, Float8Format::e5m2);
  std::vector<OneOperand> expected = {OneOperand(448), OneOperand(448), OneOperand(57344)};
  for (int pass = 0; pass < 1100; ++pass) {
    for (const Float8Role role : kRoles) {
      const double large = pass < 20 ? 4096 : 1;  // the largest magnitudes are the oldest
      const double magnitude = magnitude_at(pass) * large;
      record(history, "b", role, magnitude);
      expected[static_cast<size_t>(role)].add(magnitude);
    }
    end_pass(history);
    for (const Float8Role role : kRoles) {
      ASSERT_EQ(scale_in(history, "b", role), expected[static_cast<size_t>(role)].scale()) << "pass " << pass;
      ASSERT_EQ(scale_in(history, "a", role), kNoScale);
    }
  }
}

TEST(Float8Delays, KeepTheLargestMagnitudeOfAPass) {
  Float8History history({"w"}, torch::kCPU, Float8Format::e5m2);
  for (const double magnitude : {2.0, 100.0, 7.0}) record(history, "w", Float8Role::activation, magnitude);
  EXPECT_EQ(history.largest({0})[0][0].item<double>(), 100);
  end_pass(history);
  EXPECT_EQ(scale_in(history, "w", Float8Role::activation), 4);  // 448 / 100, rounded down to a power of two
  EXPECT_EQ(recorded(history), 0);
}

// A block of other optimizers.
TEST(Float8Delays, EndThePassOfSomeWeights) {
  Float8History history({"a", "b"}, torch::kCPU, Float8Format::e5m2);
  for (const char* weight : {"a", "b"}) record(history, weight, Float8Role::weight, 100);
  history.end_pass({0}, history.largest({0}));
  EXPECT_EQ(scale_in(history, "a", Float8Role::weight), 4);
  EXPECT_EQ(scale_in(history, "b", Float8Role::weight), kNoScale);
  EXPECT_EQ(recorded(history), 100);
  history.forget_pass({1});
  EXPECT_EQ(recorded(history), 0);
  EXPECT_EQ(history.state().size(0), 1);
}

TEST(Float8Delays, RecordNothingOutsideOfGradMode) {
  Float8History history({"w"}, torch::kCPU, Float8Format::e5m2);
  const torch::NoGradGuard no_grad;
  record(history, "w", Float8Role::activation, 100);
  EXPECT_EQ(recorded(history), 0);
}

TEST(Float8Delays, KnowNothingOfOtherWeights) {
  const Float8History history({"w"}, torch::kCPU, Float8Format::e5m2);
  EXPECT_FALSE(history.of("v").defined());
}

TEST(Float8Delays, AreThoseOfTheStateThatTheyLoad) {
  torch::manual_seed(2);
  for (const int passes : {0, 3, 1024, 1500}) {
    Float8History one({"a", "b"}, torch::kCPU, Float8Format::e4m3), other({"a", "b"}, torch::kCPU, Float8Format::e4m3);
    record(other, "a", Float8Role::weight, 3);
    end_pass(other);
    const auto pass = [](Float8History& history, double magnitude) {
      record(history, "b", Float8Role::activation, magnitude);
      end_pass(history);
    };
    for (int i = 0; i < passes; ++i) pass(one, magnitude_at(i));
    const Tensor state = one.state();
    ASSERT_EQ(state.sizes(), at::IntArrayRef({std::min(passes, 1024), 2, 3}));
    Float8History::check(state, 2);
    other.load(state);
    for (int i = 0; i < 1030; ++i) {
      for (const Float8Role role : kRoles)
        ASSERT_EQ(scale_in(one, "b", role), scale_in(other, "b", role)) << passes << " + " << i;
      ASSERT_EQ(scale_in(other, "a", Float8Role::weight), kNoScale);
      const double magnitude = magnitude_at(i);
      pass(one, magnitude), pass(other, magnitude);
    }
    EXPECT_TRUE(torch::equal(one.state(), other.state()));
  }
}

TEST(Float8Delays, RefuseOtherStates) {
  const auto expect_refused = [](const Tensor& state, const std::string& text) {
    expect_error<c10::ValueError>([&] { Float8History::check(state, 2); }, {"the FP8 history", text});
  };
  expect_refused(torch::zeros({5, 3, 3}), "[5, 3, 3]");
  expect_refused(torch::zeros({1025, 2, 3}), "at most 1024");
  expect_refused(torch::zeros({5, 2, 3}, torch::kDouble), "Double");
  expect_refused(torch::zeros({2, 3}), "[2, 3]");
  expect_refused(torch::full({5, 2, 3}, kInf), "Inf");
  expect_refused(torch::full({5, 2, 3}, kNan), "NaN");
  expect_refused(torch::full({5, 2, 3}, -1.0), "negative");
}

}  // namespace
}  // namespace apex::test
