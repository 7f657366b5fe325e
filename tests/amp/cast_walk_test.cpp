// CAST-01..08: the walk over inputs and outputs.
#include <list>
#include <set>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using amp::detail::cast_floating;
using torch::Tensor;

Tensor f32() { return torch::ones({2}); }
Tensor i64() { return torch::ones({2}, torch::kLong); }

class CastFromDtype : public ::testing::TestWithParam<torch::Dtype> {};

TEST_P(CastFromDtype, Cast01FloatingTensorsAreCast) {
  EXPECT_EQ(cast_floating(f32().to(GetParam()), at::kHalf).scalar_type(), at::kHalf);
}
INSTANTIATE_TEST_SUITE_P(Dtypes, CastFromDtype,
                         ::testing::Values(torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble));

class KeptDtype : public ::testing::TestWithParam<torch::Dtype> {};

TEST_P(KeptDtype, Cast02OtherTensorsAreNotCopied) {
  const Tensor tensor = torch::ones({2}, GetParam());
  EXPECT_TRUE(cast_floating(tensor, at::kHalf).is_same(tensor));
}
INSTANTIATE_TEST_SUITE_P(Dtypes, KeptDtype,
                         ::testing::Values(torch::kLong, torch::kInt, torch::kByte, torch::kBool, torch::kComplexFloat));

TEST(CastWalk, Cast01IsDifferentiable) {
  const Tensor x = f32().requires_grad_();
  cast_floating(x, at::kHalf).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
}

TEST(CastWalk, UndefinedTensorsStayUndefined) { EXPECT_FALSE(cast_floating(Tensor(), at::kHalf).defined()); }

TEST(CastWalk, Cast07ContainersKeepTheirTypeAndOrder) {
  const auto in = std::make_tuple(f32(), 3, std::vector<Tensor>{f32(), i64()}, std::string("s"));
  const auto out = cast_floating(in, at::kHalf);
  static_assert(std::is_same_v<decltype(in), decltype(out)>);
  EXPECT_EQ(std::get<0>(out).scalar_type(), at::kHalf);
  EXPECT_EQ(std::get<1>(out), 3);
  EXPECT_EQ(std::get<2>(out)[0].scalar_type(), at::kHalf);
  EXPECT_EQ(std::get<2>(out)[1].scalar_type(), at::kLong);
  EXPECT_EQ(std::get<3>(out), "s");
}

TEST(CastWalk, CastsPairsArraysAndOptionals) {
  const auto pair = cast_floating(std::make_pair(1, f32()), at::kHalf);
  EXPECT_EQ(pair.second.scalar_type(), at::kHalf);
  const auto array = cast_floating(std::array<Tensor, 2>{f32(), i64()}, at::kHalf);
  EXPECT_EQ(array[0].scalar_type(), at::kHalf);
  EXPECT_EQ(array[1].scalar_type(), at::kLong);
  EXPECT_EQ(cast_floating(std::optional<Tensor>(f32()), at::kHalf)->scalar_type(), at::kHalf);
  EXPECT_FALSE(cast_floating(std::optional<Tensor>(), at::kHalf).has_value());
}

TEST(CastWalk, Cast06MappingsKeepTheirKeys) {
  const auto map = cast_floating(std::map<std::string, Tensor>{{"a", f32()}, {"b", i64()}}, at::kHalf);
  EXPECT_EQ(map.at("a").scalar_type(), at::kHalf);
  EXPECT_EQ(map.at("b").scalar_type(), at::kLong);
  const auto hashed = cast_floating(std::unordered_map<int, Tensor>{{5, f32()}}, at::kHalf);
  EXPECT_EQ(hashed.at(5).scalar_type(), at::kHalf);
  torch::OrderedDict<std::string, Tensor> dict;
  dict.insert("z", f32());
  dict.insert("a", i64());
  const auto cast = cast_floating(dict, at::kHalf);
  EXPECT_EQ(cast.keys(), (std::vector<std::string>{"z", "a"}));
  EXPECT_EQ(cast["z"].scalar_type(), at::kHalf);
  EXPECT_EQ(dict["z"].scalar_type(), at::kFloat) << "the caller's dictionary is not touched";
}

TEST(CastWalk, CastsIValues) {
  const c10::IValue list(std::vector<Tensor>{f32(), i64()});
  EXPECT_EQ(cast_floating(list, at::kHalf).toTensorVector()[0].scalar_type(), at::kHalf);
  const c10::IValue tuple(std::make_tuple(f32(), int64_t{3}));
  const auto cast = cast_floating(tuple, at::kHalf);
  EXPECT_EQ(cast.toTupleRef().elements()[0].toTensor().scalar_type(), at::kHalf);
  EXPECT_EQ(cast.toTupleRef().elements()[1].toInt(), 3);
  c10::Dict<std::string, Tensor> dict;
  dict.insert("a", f32());
  EXPECT_EQ(cast_floating(c10::IValue(dict), at::kHalf).toGenericDict().at("a").toTensor().scalar_type(), at::kHalf);
  EXPECT_EQ(cast_floating(c10::IValue(2.5), at::kHalf).toDouble(), 2.5);
}

struct WalkedBatch {
  Tensor image;
  std::string note;
  WalkedBatch to(torch::Dtype dtype) const { return {image.to(dtype), note}; }
};

TEST(CastWalk, Cast05CastsUserTypesThatHaveTo) {
  const WalkedBatch batch = cast_floating(WalkedBatch{f32(), "kept"}, at::kHalf);
  EXPECT_EQ(batch.image.scalar_type(), at::kHalf);
  EXPECT_EQ(batch.note, "kept");
}

TEST(CastWalk, CastsNestedContainers) {
  std::map<std::string, std::vector<std::optional<WalkedBatch>>> batches;
  batches["a"] = {WalkedBatch{f32(), "kept"}, std::nullopt};
  const auto cast = cast_floating(batches, at::kHalf);
  EXPECT_EQ(cast.at("a")[0]->image.scalar_type(), at::kHalf);
  EXPECT_FALSE(cast.at("a")[1].has_value());
  const auto boxed = cast_floating(std::list<c10::IValue>{f32(), int64_t{3}}, at::kHalf);
  EXPECT_EQ(boxed.front().toTensor().scalar_type(), at::kHalf);
  EXPECT_EQ(boxed.back().toInt(), 3);
}

// The applier makes a new tuple; the variables that std::tie names are the caller's.
TEST(CastWalk, TiedVariablesKeepTheirType) {
  Tensor a = f32(), b = i64();
  const auto tuple = cast_floating(std::tie(a, b), at::kHalf);
  static_assert(std::is_same_v<decltype(tuple), const std::tuple<Tensor, Tensor>>);
  EXPECT_EQ(std::get<0>(tuple).scalar_type(), at::kHalf);
  EXPECT_EQ(a.scalar_type(), at::kFloat);
  const std::pair<Tensor&, int> pair(a, 1);
  EXPECT_EQ(cast_floating(pair, at::kHalf).first.scalar_type(), at::kHalf);
  EXPECT_EQ(a.scalar_type(), at::kFloat);
}

TEST(CastWalk, Cast05CastsPackedSequences) {
  const auto packed = torch::nn::utils::rnn::pack_sequence({torch::ones({3, 2}), torch::ones({1, 2})});
  const auto cast = cast_floating(packed, at::kHalf);
  EXPECT_EQ(cast.data().scalar_type(), at::kHalf);
  EXPECT_TRUE(torch::equal(cast.batch_sizes(), packed.batch_sizes()));
}

TEST(CastWalk, Cast08OtherValuesAreForwardedUncopied) {
  static_assert(
      std::is_same_v<decltype(cast_floating(std::declval<std::unique_ptr<int>&>(), at::kHalf)), std::unique_ptr<int>&>);
  static_assert(std::is_same_v<decltype(cast_floating(std::declval<std::vector<int>>(), at::kHalf)), std::vector<int>&&>);
  static_assert(!amp::detail::kCasts<torch::nn::Linear>);
  static_assert(!amp::detail::kCasts<torch::nn::LinearImpl>);
  static_assert(!amp::detail::kCasts<torch::nn::ModuleList>);
  static_assert(!amp::detail::kCasts<std::set<Tensor>>, "its elements cannot be replaced");
  static_assert(!amp::detail::kCasts<std::vector<bool>>);
  auto number = std::make_unique<int>(3);
  EXPECT_EQ(&cast_floating(number, at::kHalf), &number);
  std::vector<int> values = {1, 2};
  const int* data = values.data();
  const std::vector<int> moved = cast_floating(std::move(values), at::kHalf);
  EXPECT_EQ(moved.data(), data);
}

}  // namespace
}  // namespace apex::test
