#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "differences.h"
#include "layers.h"
#include "memory_watch.h"
#include "pass.h"
#include "recorder.h"
#include "tests/examples/scratch.h"

namespace {

using comparison::difference;

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

TEST(Difference, IsByNorms) {
  const auto apart = difference(doubles({3, 4}), doubles({3.03, 3.96}));
  // (0.03, 0.04) beside (3, 4). 3.03 and 3.96 are rounded by 2^-52 at most, 8e-15 of 0.03: as much of 0.01, and 20 / log(10)
  // times as much in decibels.
  EXPECT_NEAR(apart.relative_error, 0.01, 2e-16);
  EXPECT_NEAR(apart.sqnr_db, 40, 2e-13);
  // A quotient below 1, after some nine roundings of 2^-53.
  EXPECT_NEAR(apart.cosine, (9.09 + 15.84) / (5 * std::hypot(3.03, 3.96)), 1e-15);
}

TEST(Difference, OfEqualTensorsIsZero) {
  const auto apart = difference(doubles({1, 0}), doubles({1, 0}));
  EXPECT_EQ(apart.relative_error, 0);
  EXPECT_EQ(apart.sqnr_db, std::numeric_limits<double>::infinity());
  EXPECT_EQ(apart.cosine, 1);
}

TEST(Difference, OfZerosAlone) {
  const auto lost = difference(doubles({3, 4}), doubles({0, 0}));
  EXPECT_EQ(lost.relative_error, 1);
  EXPECT_EQ(lost.sqnr_db, 0);
  EXPECT_EQ(lost.cosine, 0);
  const auto gained = difference(doubles({0, 0}), doubles({3, 4}));
  EXPECT_TRUE(std::isnan(gained.relative_error));
  EXPECT_TRUE(std::isnan(gained.sqnr_db));
  EXPECT_EQ(gained.cosine, 0);
  EXPECT_EQ(difference(doubles({0, 0}), doubles({0, 0})).cosine, 1);
}

TEST(Difference, CountsNonFiniteValues) {
  const auto apart = difference(doubles({1, 2, 3, 4}), doubles({1, INFINITY, -INFINITY, NAN}).to(at::kHalf));
  EXPECT_EQ(apart.inf, 2);
  EXPECT_EQ(apart.nan, 1);
  EXPECT_TRUE(std::isnan(apart.sqnr_db));
}

TEST(MemoryWatch, CountsAllocationsAndReleases) {
  const auto before = at::empty({100}, at::kFloat);
  comparison::MemoryWatch watch(at::kCPU);
  watch.begin();
  auto kept = at::empty({1000}, at::kFloat);
  { const auto passing = at::empty({500}, at::kFloat); }
  watch.mark_forward();
  kept = at::empty({100}, at::kHalf);  // the old one goes when the new one is there
  watch.end();
  const auto after = at::empty({100000}, at::kFloat);
  EXPECT_EQ(watch.after_forward(), 4000);
  EXPECT_EQ(watch.peak(), 6000);
  watch.begin();
  const auto again = at::empty({10}, at::kFloat);
  kept = at::Tensor();  // was there before
  watch.mark_forward();
  watch.end();
  EXPECT_EQ(watch.after_forward(), 40);
  EXPECT_EQ(watch.peak(), 40);
}

TEST(Recorder, MeasuresTheMemoryOfShortRunsToo) {
  torch::nn::Linear net(4, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  comparison::Recorder recorder(at::kCPU);
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    recorder.step_begins();
    const auto loss = net(at::ones({3, 4})).sum();
    recorder.loss_is_there();
    loss.backward();
    recorder.gradients_are_there(sgd);
    sgd.step();
    recorder.step_ends();
  }
  EXPECT_EQ(recorder.memory().rfind("step,saved_for_backward,peak\n2,", 0), 0u) << recorder.memory();
  EXPECT_EQ(recorder.memory().find("2,0,"), std::string::npos) << recorder.memory();
}

// What a matrix product keeps for the backward pass, at O0: its input and its weight were there before, its output is new.
TEST(MemoryWatch, SeesBackwardPasses) {
  const auto weight = at::ones({10, 20}).requires_grad_(), input = at::ones({5, 10});
  comparison::MemoryWatch watch(at::kCPU);
  watch.begin();
  {
    const auto output = input.mm(weight);
    watch.mark_forward();
    output.sum().backward();
  }
  watch.end();
  EXPECT_EQ(watch.after_forward(), 5 * 20 * 4);
  EXPECT_GE(watch.peak(), (5 * 20 + 10 * 20) * 4);  // output and gradient of the weight at the least
}

class Passes : public testing::Test {
 protected:
  Passes() {
    at::manual_seed(3);
    data_.train = {at::randint(0, 256, {30, 1, 8, 8}).to(at::kByte), at::randint(0, 10, {30}, at::kLong)};
    data_.classes = 10;
    data_.mean = {128};
    data_.std_dev = {70};
    config_.model = {"convnet", {4, 8}, {}, 0.5};
    config_.batch_size = 20;
  }

  comparison::Pass pass(const std::string& level, double loss_scale) const {
    return comparison::make_pass({config_, data_, "", at::kCPU}, apex::amp::OptLevel(level), loss_scale);
  }

  train::Config config_;
  train::DataSplit data_;
};

TEST_F(Passes, AreReproducibleWithAndWithoutDropout) {
  const auto one = pass("O0", 1), other = pass("O0", 1);
  ASSERT_EQ(one.outputs.size(), 10U);  // two stages of three layers, pooling, flattening, dropout, linear
  for (size_t i = 0; i < one.outputs.size(); ++i) {
    EXPECT_TRUE(one.outputs[i].value.equal(other.outputs[i].value)) << one.outputs[i].name;
    EXPECT_TRUE(one.gradients[i].value.equal(other.gradients[i].value)) << one.outputs[i].name;
  }
}

TEST_F(Passes, HaveTheDtypesOfTheLevelAndGradientsWithAndWithoutTheScale) {
  const auto reference = pass("O0", 1), o2 = pass("O2", 1024);
  EXPECT_EQ(o2.outputs[0].layer_type, "Conv2d");
  EXPECT_EQ(o2.outputs[0].value.scalar_type(), at::kHalf);
  EXPECT_EQ(o2.weight_gradients[0].name, "layers.0.weight");
  EXPECT_EQ(o2.weight_gradients[0].scaled.scalar_type(), at::kHalf);
  EXPECT_EQ(o2.weight_gradients[0].value.scalar_type(), at::kFloat);  // of the master
  EXPECT_TRUE(o2.weight_gradients[0].scaled.to(at::kFloat).div(1024).equal(o2.weight_gradients[0].value));
  // FP16 has 11 bits: a rounding is half of 2^-10 at most, and 30 dB allow 32 times that.
  for (size_t i = 0; i < o2.gradients.size(); ++i) {
    EXPECT_GT(difference(reference.gradients[i].value, o2.gradients[i].value).sqnr_db, 30) << o2.gradients[i].name;
  }
}

// At O1 and O4 the thread that called `initialize` casts what a program computes.
TEST_F(Passes, TurnCastsOffAfterwards) {
  pass("O1", 128);
  const auto one = at::ones({4, 4});
  EXPECT_EQ(one.mm(one).scalar_type(), at::kFloat);
}

TEST_F(Passes, CastAndScaleLikeTorchAmp) {
  const train::TorchAmpConfig none{"none"}, autocast{"bfloat16", true};
  const auto plain = comparison::make_pass({config_, data_, "", at::kCPU}, {train::without_amp(), none}, 1);
  const auto reference = pass("O0", 1);
  EXPECT_TRUE(plain.weight_gradients[0].value.equal(reference.weight_gradients[0].value));
  const auto cast = comparison::make_pass({config_, data_, "", at::kCPU}, {train::without_amp(), autocast}, 1024);
  EXPECT_EQ(cast.outputs[0].value.scalar_type(), at::kBFloat16);
  EXPECT_EQ(cast.weight_gradients[0].value.scalar_type(), at::kFloat);
  EXPECT_TRUE(cast.weight_gradients[0].scaled.div(1024).equal(cast.weight_gradients[0].value));
  // BF16 has 8 bits, three fewer than FP16, for which the test above has 30 dB: 18 dB less.
  EXPECT_GT(difference(reference.weight_gradients[0].value, cast.weight_gradients[0].value).sqnr_db, 12);
}

TEST_F(Passes, HaveNoGradientsBeforeTheFirstParameter) {
  config_.model = {"mlp", {4}, {}, 0};
  const auto made = pass("O1", 128);
  ASSERT_EQ(made.outputs.size(), 4U);
  EXPECT_EQ(made.outputs[0].layer_type, "Flatten");
  ASSERT_EQ(made.gradients.size(), 3U);
  EXPECT_EQ(made.gradients[0].name, "layers.1");
}

std::vector<std::string> fields_of(const std::string& row) {
  std::istringstream stream(row);
  std::vector<std::string> fields;
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  return fields;
}

TEST_F(Passes, UnderflowIsThatOfRoundingScaledO0Values) {
  const double loss_scale = 0.00390625;  // small: much underflows
  const auto reference = pass("O0", 1), o3 = pass("O3", loss_scale);
  std::istringstream rows(comparison::compare_layers(reference, o3, loss_scale).layers);
  std::string row;
  std::getline(rows, row);
  ASSERT_EQ(fields_of(row)[12], "underflow_zero");
  int64_t total = 0;
  for (size_t i = 0; i < reference.outputs.size(); ++i) std::getline(rows, row);  // outputs come first
  for (const auto& gradient : reference.gradients) {
    std::getline(rows, row);
    const auto nonzero = gradient.value.ne(0);
    const auto lost = nonzero.logical_and(gradient.value.mul(loss_scale).to(at::kHalf).eq(0)).sum().item<int64_t>();
    EXPECT_EQ(fields_of(row)[1], gradient.name);
    EXPECT_EQ(std::stoll(fields_of(row)[11]), nonzero.sum().item<int64_t>()) << row;
    EXPECT_EQ(std::stoll(fields_of(row)[12]), lost) << row;
    total += lost;
  }
  EXPECT_GT(total, 0);
}

}  // namespace
