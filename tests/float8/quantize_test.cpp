// Rounding to FP8 with scales, against values that record.py has recorded, bit for bit, and against torch's own casts.
#include <ATen/ATen.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/float8/float8.h"
#include "tests/kernels/support.h"

namespace float8_test {
namespace {

using apex::kernels::Float8;
using apex::kernels::Float8Blocks;
using apex::kernels::Float8Values;
using apex::kernels::round_to_float8;
using apex::kernels::round_to_float8_by_aten;
using kernels_test::available_isas;
using kernels_test::same_bits;
using kernels_test::same_bytes;
using kernels_test::Tensors;
using kernels_test::UseIsa;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
constexpr Float8 kFormats[] = {Float8::e4m3, Float8::e5m2};
const std::map<std::string, Float8Blocks> kBlocks = {{"whole", {0, 0}},       {"1x128", {1, 128}}, {"128x1", {128, 1}},
                                                     {"128x128", {128, 128}}, {"1x32", {1, 32}},   {"32x1", {32, 1}}};

at::ScalarType dtype_of(Float8 format) { return format == Float8::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2; }
double largest_of(Float8 format) { return format == Float8::e4m3 ? 448 : 57344; }

Tensors both(const Float8Values& found) { return {found.values, found.scales}; }

// The scale of each element.
at::Tensor spread(const at::Tensor& scales, const at::Tensor& x, Float8Blocks blocks) {
  if (blocks.rows == 0) return scales.expand(x.sizes());
  const at::Tensor by_rows = scales.repeat_interleave(blocks.rows, 1).narrow(1, 0, x.size(-2));
  return by_rows.repeat_interleave(blocks.columns, 2).narrow(2, 0, x.size(-1)).reshape(x.sizes());
}

// What values of FP8 stand for, in bfloat16.
at::Tensor unscaled(const at::Tensor& float8, const at::Tensor& scales) {
  return (float8.to(at::kDouble) / scales.to(at::kDouble)).to(at::kBFloat16);
}

// Torch's own cast, with the scale of each element.
at::Tensor rounded_by_cast(const at::Tensor& x, const at::Tensor& scales, Float8 format) {
  const double largest = largest_of(format);
  return unscaled((x.to(at::kDouble) * scales.to(at::kDouble)).clamp(-largest, largest).to(dtype_of(format)), scales);
}

// The largest power of two with which the magnitude is within the format, at most 2^126.
double scale_of(double magnitude, Float8 format) {
  if (magnitude == 0) return 1;
  if (!std::isfinite(magnitude)) return kNan;
  double scale = 0x1p126;
  while (magnitude * scale > largest_of(format)) scale /= 2;
  return scale;
}

// Recorded values

class Recording {
 public:
  Recording() {
    for (const auto& [name, tensor] : apex::amp::detail::read_safetensors(RECORDED_FLOAT8).tensors) tensors_[name] = tensor;
  }
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }

  at::Tensor input(const std::string& name) const {
    if (has("inputs/" + name)) return tensors_.at("inputs/" + name);
    return tensors_.at("inputs/square").slice(0, 100, 230).slice(1, 30, 230) * tensors_.at("inputs/" + name + "+factors");
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

const Recording& recording() {
  static const Recording kRecording;
  return kRecording;
}

struct Case {
  std::string name, input;
  Float8 format;
  Float8Blocks blocks;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = [] {
    const std::string end = "/exponents";
    std::vector<Case> found;
    for (const auto& entry : recording().tensors()) {
      const std::string& name = entry.first;
      if (name.size() < end.size() || name.compare(name.size() - end.size(), end.size(), end) != 0) continue;
      const std::string whole = name.substr(0, name.size() - end.size());
      const size_t first = whole.find('/'), last = whole.rfind('/');
      const std::string format = whole.substr(first + 1, last - first - 1);
      found.push_back(
          {whole, whole.substr(0, first), format == "e4m3" ? Float8::e4m3 : Float8::e5m2, kBlocks.at(whole.substr(last + 1))});
    }
    return found;
  }();
  return kCases;
}

at::Tensor recorded_scales(const std::string& name) {
  const at::Tensor exponents = recording()[name + "/exponents"];
  const at::Tensor scales = at::ones(exponents.sizes(), at::kDouble).ldexp(exponents.to(at::kDouble)).to(at::kFloat);
  return scales.masked_fill(exponents.eq(-128), kNan);
}

// For each row the sum of value * (1 + column).
at::Tensor weighted_sums(const at::Tensor& rows) { return (rows * (1 + at::arange(rows.size(-1), rows.options()))).sum(-1); }

void expect_recorded(const Case& one, const at::Tensor& x, const Float8Values& found) {
  const at::Tensor scales = recorded_scales(one.name);
  ASSERT_TRUE(same_bits(found.scales, scales));
  ASSERT_EQ(found.values.sizes(), x.sizes());
  ASSERT_EQ(found.values.scalar_type(), at::kBFloat16);
  const at::Tensor each = spread(scales, x, one.blocks);
  const at::Tensor float8 = (found.values.to(at::kDouble) * each.to(at::kDouble)).to(dtype_of(one.format));
  EXPECT_TRUE(same_bits(found.values, unscaled(float8, each))) << "values that are not of the format";
  const at::Tensor bytes = float8.contiguous().view(at::kByte).masked_fill(found.values.isnan(), 0x7f);
  if (recording().has(one.name + "/bytes")) {
    const int64_t different = bytes.ne(recording()[one.name + "/bytes"]).sum().item<int64_t>();
    EXPECT_EQ(different, 0) << "of " << x.numel() << " bytes";
  } else {
    const at::Tensor sums = weighted_sums(bytes.to(at::kLong).reshape({-1, x.size(-1)})).to(at::kInt);
    const at::Tensor different = sums.ne(recording()[one.name + "/sums"]).nonzero();
    EXPECT_EQ(different.numel(), 0) << "rows: " << different.flatten();
  }
}

TEST(RoundingToFloat8, HasTheRecordedBits) {
  ASSERT_GE(cases().size(), 100u);
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const at::Tensor x = recording().input(one.input), before = x.clone();
    for (const auto isa : available_isas()) {
      SCOPED_TRACE(apex::kernels::cpu::name_of(isa));
      const UseIsa use(isa);
      expect_recorded(one, x, round_to_float8(x, one.format, one.blocks));
    }
    SCOPED_TRACE("by LibTorch's operators");
    expect_recorded(one, x, round_to_float8_by_aten(x, one.format, one.blocks));
    EXPECT_TRUE(same_bytes({x}, {before}));
  }
}

// A linear layer and its gradients, of operands that are rounded along the dimension that each product sums over.
struct Recipe {
  std::string name;
  Float8 forward, backward;
  Float8Blocks along_rows, along_columns, weight;  // `weight`: 0, 0: as other operands
};
const std::vector<Recipe> kRecipes = {{"current", Float8::e4m3, Float8::e5m2, {0, 0}, {0, 0}, {0, 0}},
                                      {"block128", Float8::e4m3, Float8::e4m3, {1, 128}, {128, 1}, {128, 128}},
                                      {"mx", Float8::e4m3, Float8::e4m3, {1, 32}, {32, 1}, {0, 0}}};

at::Tensor rounded(const at::Tensor& x, Float8 format, Float8Blocks blocks) {
  return round_to_float8(x, format, blocks).values.to(at::kDouble);
}

double decibels(const at::Tensor& exact, const at::Tensor& found) {
  return 20 * std::log10(exact.norm().item<double>() / (exact - found).norm().item<double>());
}

TEST(RoundingToFloat8, GivesTheRecordedProducts) {
  const at::Tensor square = recording()["inputs/square"];
  const at::Tensor x = square.slice(0, 0, 64), w = square.slice(0, 64, 192), g = square.slice(0, 192, 224).reshape({64, 128});
  const Tensors exact = {x.to(at::kDouble).matmul(w.t().to(at::kDouble)), g.to(at::kDouble).matmul(w.to(at::kDouble)),
                         g.t().to(at::kDouble).matmul(x.to(at::kDouble))};
  for (const Recipe& recipe : kRecipes) {
    const auto weight = [&](Float8Blocks blocks) { return recipe.weight.rows == 0 ? blocks : recipe.weight; };
    const Tensors found = {
        rounded(x, recipe.forward, recipe.along_rows).matmul(rounded(w, recipe.forward, weight(recipe.along_rows)).t()),
        rounded(g, recipe.backward, recipe.along_rows).matmul(rounded(w, recipe.forward, weight(recipe.along_columns))),
        rounded(g, recipe.backward, recipe.along_columns).t().matmul(rounded(x, recipe.forward, recipe.along_columns))};
    const std::vector<std::string> names = {"y", "dx", "dw"};
    const std::string folder = "linear/" + recipe.name + "/";
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_TRUE(same_bits(weighted_sums(found[i]), recording()[folder + names[i]])) << folder << names[i];
      const double recorded = recording()[folder + "decibels"][static_cast<int64_t>(i)].item<double>();
      EXPECT_NEAR(decibels(exact[i], found[i]), recorded, 1e-9) << folder << names[i];
    }
  }
}

// Every bit pattern

at::Tensor patterns() {
  return at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16).clone();  // wraps round
}

// With one scale: all values up to a largest magnitude, which is 1.75 times each power of two in turn.
TEST(RoundingToFloat8, IsTorchsCastForEveryPattern) {
  const at::Tensor all = patterns();
  const at::Tensor finite = all.masked_select(all.isfinite());
  for (const Float8 format : kFormats) {
    for (int exponent = -132; exponent <= 127; ++exponent) {
      const double magnitude = 1.75 * std::exp2(exponent);
      const at::Tensor x = finite.masked_select(finite.abs() <= magnitude).view({2, -1});
      const double scale = scale_of(magnitude, format);
      const Float8Values found = round_to_float8(x, format, {});
      ASSERT_EQ(found.scales.item<double>(), scale) << exponent;
      const at::Tensor expected = rounded_by_cast(x, at::full({1}, scale, at::kDouble), format);
      ASSERT_TRUE(same_bits(found.values, expected)) << exponent;
    }
    // The largest values of bfloat16 round to 2^128, which it does not have.
    const at::Tensor x = finite.view({2, -1});
    const double scale = scale_of(x.abs().max().item<double>(), format);
    const Float8Values found = round_to_float8(x, format, {});
    EXPECT_EQ(found.scales.item<double>(), scale);
    EXPECT_TRUE(same_bits(found.values, rounded_by_cast(x, at::full({1}, scale, at::kDouble), format)));
    EXPECT_GT(found.values.isinf().sum().item<int64_t>(), 0);
  }
}

// With a scale for each value.
TEST(RoundingToFloat8, TakesEveryPatternAsABlock) {
  const at::Tensor all = patterns();
  for (const Float8 format : kFormats) {
    at::Tensor scales = at::empty({65536}, at::kFloat);
    const at::Tensor magnitudes = all.to(at::kDouble).abs();
    for (int64_t i = 0; i < 65536; ++i) {
      scales.mutable_data_ptr<float>()[i] = static_cast<float>(scale_of(magnitudes.const_data_ptr<double>()[i], format));
    }
    const at::Tensor expected = rounded_by_cast(all, scales, format);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{65536, 1}, {1, 65536}, {4, 128, 128}}) {
      for (const auto isa : available_isas()) {
        const UseIsa use(isa);
        const Float8Values found = round_to_float8(all.view(sizes), format, {1, 1});
        const std::vector<int64_t> matrices = sizes.size() == 2 ? std::vector<int64_t>{1, sizes[0], sizes[1]} : sizes;
        EXPECT_TRUE(same_bits(both(found), {expected.view(sizes), scales.view(matrices)}));
      }
    }
  }
}

// Layouts

const std::vector<Float8Blocks> kShapes = {{0, 0}, {1, 128}, {128, 1}, {128, 128}, {1, 32}, {32, 1}, {32, 32}, {3, 5}, {1, 1}};

// Magnitudes from 2^-20 to 2^20, and some zeros.
at::Tensor random_input(at::IntArrayRef sizes) {
  at::manual_seed(1);
  const at::Tensor x = at::randn(sizes) * (at::rand(sizes) * 40 - 20).exp2() * at::rand(sizes).gt(0.1);
  return x.to(at::kBFloat16);
}

void expect_swapped(const at::Tensor& x, Float8 format, Float8Blocks blocks) {
  const Float8Values expected = round_to_float8(x.contiguous(), format, blocks);
  const at::Tensor scales = blocks.rows == 0 ? expected.scales : expected.scales.mT();
  for (const at::Tensor& transposed : {x.contiguous().mT(), x.mT().contiguous()}) {
    EXPECT_TRUE(same_bits(both(round_to_float8(transposed, format, blocks.transposed())), {expected.values.mT(), scales}));
    EXPECT_TRUE(
        same_bits(both(round_to_float8_by_aten(transposed, format, blocks.transposed())), {expected.values.mT(), scales}));
  }
}

TEST(RoundingToFloat8, OfATransposedTensorIsTransposed) {
  for (const Float8 format : kFormats) {
    for (const Float8Blocks blocks : kShapes) {
      SCOPED_TRACE(std::to_string(blocks.rows) + " x " + std::to_string(blocks.columns));
      for (const char* name : {"square", "rows", "batched", "nonfinite"}) {
        SCOPED_TRACE(name);
        expect_swapped(recording().input(name), format, blocks);
      }
      expect_swapped(random_input({2, 3, 70, 33}), format, blocks);
    }
  }
}

TEST(RoundingToFloat8, TakesAnyStrides) {
  const at::Tensor x = random_input({6, 40, 290});
  const std::vector<std::pair<std::string, at::Tensor>> inputs = {
      {"every second column", x.slice(2, 0, 290, 2)},
      {"every third row", x.slice(1, 1, 40, 3)},
      {"a part that begins at an odd address", x.slice(1, 3, 37).slice(2, 7, 201)},
      {"rows of all matrices side by side", x.transpose(0, 1)},
      {"matrices last", x.permute({1, 2, 0})},
      {"rows last", x.permute({2, 0, 1})},
      {"one row again and again", x.slice(1, 4, 5).expand({6, 40, 290})},
      {"one column again and again", x.slice(2, 4, 5).expand({6, 40, 64})},
      {"one matrix again and again", x[2].expand({3, 40, 290})},
      {"four dimensions", x.view({2, 3, 40, 290}).transpose(0, 1)},
      {"four dimensions, transposed", x.view({2, 3, 40, 290}).transpose(0, 1).mT()},
      {"one row", x[0].slice(0, 5, 6)},
      {"one column", x[0].slice(1, 5, 6)},
      {"one value", x[0].slice(1, 5, 6).slice(0, 9, 10)},
      {"channels last", x.view({2, 3, 40, 290}).contiguous(at::MemoryFormat::ChannelsLast)},
  };
  for (const auto& [name, input] : inputs) {
    SCOPED_TRACE(name);
    for (const Float8 format : kFormats) {
      for (const Float8Blocks blocks : kShapes) {
        SCOPED_TRACE(std::to_string(blocks.rows) + " x " + std::to_string(blocks.columns));
        const at::Tensor dense = at::empty(input.sizes(), at::kBFloat16).copy_(input);
        const Tensors expected = both(round_to_float8_by_aten(dense, format, blocks));
        EXPECT_TRUE(same_bits(both(round_to_float8(dense, format, blocks)), expected));
        EXPECT_TRUE(same_bits(both(round_to_float8(input, format, blocks)), expected));
        EXPECT_TRUE(same_bits(both(round_to_float8_by_aten(input, format, blocks)), expected));
      }
    }
  }
}

// Large enough for several tasks, and for several tiles of a row.
TEST(RoundingToFloat8, HasTheSameBitsEverywhere) {
  const Tensors inputs = {random_input({300, 500}), random_input({2, 70001}), random_input({70001, 2})};
  inputs[0][7][13] = kNan;
  inputs[1][1][60000] = -kInfinity;
  for (const Float8 format : kFormats) {
    for (const Float8Blocks blocks : kShapes) {
      SCOPED_TRACE(std::to_string(blocks.rows) + " x " + std::to_string(blocks.columns));
      const auto rounded_by = [&](auto round) {
        Tensors results;
        for (const at::Tensor& x : inputs) {
          const Float8Values found = round(x, format, blocks);
          results.insert(results.end(), {found.values, found.scales});
        }
        return results;
      };
      kernels_test::expect_same_everywhere([&] { return rounded_by(round_to_float8); });
      EXPECT_TRUE(same_bits(rounded_by(round_to_float8), rounded_by(round_to_float8_by_aten)));
    }
  }
}

// Inf, NaN and nothing

TEST(RoundingToFloat8, MakesABlockWithInfOrNanNan) {
  const at::Tensor x = recording().input("rows");
  for (const double value : {kInfinity, -kInfinity, kNan, -kNan}) {
    for (const auto& [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {127, 31}, {128, 128}, {129, 199}, {64, 160}}) {
      const at::Tensor changed = x.clone();
      changed[row][column] = value;
      for (const Float8 format : kFormats) {
        for (const Float8Blocks blocks : kShapes) {
          SCOPED_TRACE(std::to_string(blocks.rows) + " x " + std::to_string(blocks.columns));
          Float8Values expected = round_to_float8(x, format, blocks);
          if (blocks.rows == 0) {
            expected.values.fill_(kNan);
            expected.scales.fill_(kNan);
          } else {
            const int64_t down = row / blocks.rows, right = column / blocks.columns;
            expected.scales[0][down][right] = kNan;
            expected.values.slice(0, down * blocks.rows, (down + 1) * blocks.rows)
                .slice(1, right * blocks.columns, (right + 1) * blocks.columns)
                .fill_(kNan);
          }
          EXPECT_TRUE(same_bits(both(round_to_float8(changed, format, blocks)), both(expected)));
          EXPECT_TRUE(same_bits(both(round_to_float8_by_aten(changed, format, blocks)), both(expected)));
        }
      }
    }
  }
}

TEST(RoundingToFloat8, TakesEmptyTensors) {
  const std::vector<std::vector<int64_t>> shapes = {{0, 5}, {5, 0}, {0, 0}, {0, 40, 70}, {3, 0, 70}, {3, 40, 0}, {2, 0, 3, 4}};
  for (const auto round : {round_to_float8, round_to_float8_by_aten}) {
    for (const std::vector<int64_t>& sizes : shapes) {
      for (const Float8 format : kFormats) {
        for (const Float8Blocks blocks : kShapes) {
          const at::Tensor x = at::empty(sizes, at::kBFloat16);
          for (const at::Tensor& view : {x, x.mT()}) {
            const Float8Values found = round(view, format, blocks);
            EXPECT_EQ(found.values.sizes(), view.sizes());
            EXPECT_EQ(found.values.scalar_type(), at::kBFloat16);
            EXPECT_EQ(found.scales.scalar_type(), at::kFloat);
            if (blocks.rows == 0) {
              EXPECT_TRUE(same_bits(found.scales, at::ones({1})));
            } else {
              EXPECT_EQ(found.scales.dim(), 3);
              EXPECT_EQ(found.scales.numel(), 0);
            }
          }
        }
      }
    }
  }
}

TEST(RoundingToFloat8, RefusesOtherTensorsAndBlocks) {
  const at::Tensor x = at::ones({4, 4}, at::kBFloat16);
  EXPECT_THROW(round_to_float8(x.to(at::kFloat), Float8::e4m3, {}), c10::Error);
  EXPECT_THROW(round_to_float8(x.to(at::kHalf), Float8::e4m3, {1, 32}), c10::Error);
  EXPECT_THROW(round_to_float8(x[0], Float8::e4m3, {}), c10::Error);
  EXPECT_THROW(round_to_float8(x, Float8::e4m3, {0, 32}), c10::Error);
  EXPECT_THROW(round_to_float8(x, Float8::e4m3, {32, 0}), c10::Error);
}

}  // namespace
}  // namespace float8_test
