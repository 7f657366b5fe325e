#include "opt_levels/cast_lists.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <vector>

#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

// Cast lists as YAML: how they are changed, refused and written, and how a level names them.
namespace apex::opt_levels::testing {
namespace {

using Policies = std::map<std::string, CastPolicy>;

CastPolicy policy_of(const Policies& policies, const std::string& name) {
  const auto found = policies.find(name);
  return found == policies.end() ? CastPolicy::none : found->second;
}

TEST(CastLists, AreEmptyByDefault) {
  EXPECT_TRUE(CastLists().casts().empty());
  EXPECT_TRUE(CastLists().match().empty());
}

TEST(CastLists, AreTheBuiltInOnesIfUnchanged) {
  EXPECT_EQ(CastLists::from_yaml_string("base: built_in"), CastLists::built_in());
  EXPECT_EQ(CastLists::from_yaml_string("casts:\nmatch:"), CastLists::built_in());
  EXPECT_EQ(CastLists::from_yaml_string("extensions: true"), CastLists::built_in());
  EXPECT_EQ(CastLists::from_yaml_string("base: none"), CastLists());
}

TEST(CastLists, DifferByOneOperatorOfEitherList) {
  const auto lists = CastLists::from_yaml_string("base: none\ncasts: {half: [a::b]}\nmatch: {half: [a::c]}");
  EXPECT_NE(lists, CastLists::from_yaml_string("base: none\ncasts: {none: [a::b]}\nmatch: {half: [a::c]}"));
  EXPECT_NE(lists, CastLists::from_yaml_string("base: none\ncasts: {half: [a::b]}\nmatch: {none: [a::c]}"));
  EXPECT_NE(lists, CastLists::from_yaml_string("base: none\ncasts: {half: [a::b]}"));
}

TEST(CastLists, ReadEveryPolicy) {
  const auto lists = CastLists::from_yaml_string(
      "base: none\n"
      "casts: {none: [a::a], half: [a::b], float32: [a::c], promote: [a::d], sequence: [a::e], match_self: [a::f],\n"
      "        float_inplace: [a::g], banned: [a::h], opaque: [a::i.Overload_1], widen: [a::j]}\n"
      "match: {none: [b::a], half: [b::b], float32: [b::c], match_self: [b::d], follow_weights: [b::e], widen: [b::f]}\n");
  EXPECT_EQ(lists.casts(), (Policies{{"a::a", CastPolicy::none},
                                     {"a::b", CastPolicy::half},
                                     {"a::c", CastPolicy::float32},
                                     {"a::d", CastPolicy::promote},
                                     {"a::e", CastPolicy::sequence},
                                     {"a::f", CastPolicy::match_self},
                                     {"a::g", CastPolicy::float_inplace},
                                     {"a::h", CastPolicy::banned},
                                     {"a::i.Overload_1", CastPolicy::opaque},
                                     {"a::j", CastPolicy::widen}}));
  EXPECT_EQ(lists.match(), (Policies{{"b::a", CastPolicy::none},
                                     {"b::b", CastPolicy::half},
                                     {"b::c", CastPolicy::float32},
                                     {"b::d", CastPolicy::match_self},
                                     {"b::e", CastPolicy::follow_weights},
                                     {"b::f", CastPolicy::widen}}));
}

TEST(CastLists, ReplaceThePolicyOfOneOperatorOnly) {
  const auto lists = CastLists::from_yaml_string("casts:\n  half: [aten::softmax, mylib::op]\n  none:\n    - aten::exp\n");
  Policies expected = CastLists::built_in().casts();
  expected["aten::softmax"] = CastPolicy::half;
  expected["mylib::op"] = CastPolicy::half;
  expected["aten::exp"] = CastPolicy::none;
  EXPECT_EQ(lists.casts(), expected);
  EXPECT_EQ(lists.match(), CastLists::built_in().match());
}

TEST(CastLists, ANameWithoutOverloadReplacesListedOverloads) {
  ASSERT_EQ(policy_of(CastLists::built_in().casts(), "aten::div.Tensor_mode"), CastPolicy::promote);
  const auto lists = CastLists::from_yaml_string("casts: {half: [aten::div]}");
  EXPECT_EQ(lists.casts().count("aten::div.Tensor"), 0u);
  EXPECT_EQ(lists.casts().count("aten::div.Tensor_mode"), 0u);
  EXPECT_EQ(policy_of(lists.casts(), "aten::div"), CastPolicy::half);
  EXPECT_EQ(policy_of(lists.casts(), "aten::div_.Tensor"), CastPolicy::match_self);
}

TEST(CastLists, ANameAndItsOverloadCanBothBeListed) {
  const auto lists = CastLists::from_yaml_string("base: none\ncasts: {half: [a::b], none: [a::b.out_type]}");
  EXPECT_EQ(lists.casts(), (Policies{{"a::b", CastPolicy::half}, {"a::b.out_type", CastPolicy::none}}));
}

TEST(CastLists, WithoutExtensionsAreApexs) {
  const auto lists = CastLists::from_yaml_string("extensions: false");
  EXPECT_EQ(policy_of(lists.casts(), "aten::log1p"), CastPolicy::none);
  EXPECT_EQ(policy_of(lists.casts(), "aten::einsum"), CastPolicy::opaque);
  EXPECT_EQ(policy_of(CastLists::built_in().casts(), "aten::log1p"), CastPolicy::float32);
  EXPECT_EQ(policy_of(CastLists::built_in().casts(), "aten::einsum"), CastPolicy::half);
  EXPECT_EQ(policy_of(lists.casts(), "aten::linear"), CastPolicy::half);
  EXPECT_EQ(lists.match(), CastLists::built_in().match());
}

struct CastListRow {
  const char* name;
  const char* yaml;
  std::vector<const char*> message;
};

void PrintTo(const CastListRow& row, std::ostream* out) { *out << row.name; }

const CastListRow kCastListRows[] = {
    {"unknown_key", "cast: {half: [aten::mm]}", {"c.yaml:1:1:", "'cast'", "Did you mean 'casts'?"}},
    {"unknown_policy",
     "casts:\n  fp16: [aten::mm]",
     {"c.yaml:2:3:", "'fp16'. Did you mean 'half'? ", "half, float32, promote"}},
    {"type_of_half", "casts: {float16: [aten::sigmoid]}", {"c.yaml:1:9:", "'float16'. Did you mean 'half'? "}},
    {"other_type_of_half", "match: {bfloat16: [aten::add]}", {"c.yaml:1:9:", "'bfloat16'. Did you mean 'half'? "}},
    {"misspelt_float32", "casts: {floa32: [aten::sigmoid]}", {"c.yaml:1:9:", "'floa32'. Did you mean 'float32'? "}},
    {"policy_of_no_match", "match: {banned: [aten::add]}", {"c.yaml:1:9:", "'banned'", "none, half, float32"}},
    {"unknown_base", "base: apex", {"c.yaml:1:7:", "base", "'apex'", "built_in or none"}},
    {"base_is_a_list", "base: [none]", {"c.yaml:1:7:", "base", "a list"}},
    {"extensions_is_a_number", "extensions: 0", {"c.yaml:1:13:", "extensions", "'0'", "true or false"}},
    {"extensions_is_a_map", "extensions: {half: [a::b]}", {"c.yaml:1:13:", "extensions", "a map", "true or false"}},
    {"extensions_of_nothing", "base: none\nextensions: false", {"c.yaml:2:1:", "'extensions'", "'base: none'"}},
    {"casts_is_a_list", "casts: [aten::mm]", {"c.yaml:1:8:", "casts", "a list", "a map of policies"}},
    {"policy_is_a_name", "casts:\n  half: aten::mm", {"c.yaml:2:9:", "half", "'aten::mm'", "a list of operators"}},
    {"no_namespace", "casts:\n  half:\n    - mm", {"c.yaml:3:7:", "'mm'", "aten::linear"}},
    {"one_colon", "casts: {half: ['aten:mm']}", {"c.yaml:1:16:", "aten:mm", "aten::linear"}},
    {"empty_overload", "casts: {half: [aten::mm.]}", {"c.yaml:1:16:", "'aten::mm.'"}},
    {"two_overloads", "casts: {half: [aten::mm.a.b]}", {"c.yaml:1:16:", "'aten::mm.a.b'"}},
    {"space", "casts: {half: [aten::mm x]}", {"c.yaml:1:16:", "'aten::mm x'"}},
    {"digit_first", "casts: {half: ['aten::2mm']}", {"c.yaml:1:16:", "aten::2mm"}},
    {"empty_item", "casts: {half: ['']}", {"c.yaml:1:16:", "nothing"}},
    {"item_is_a_map", "casts: {half: [{aten: mm}]}", {"c.yaml:1:16:", "a map", "aten::linear"}},
    {"twice_in_a_list", "casts:\n  half: [aten::mm, aten::mm]", {"c.yaml:2:20:", "'aten::mm'", "first at c.yaml:2:10"}},
    {"twice_in_a_block", "casts:\n  half: [a::b]\n  none: [a::b]", {"c.yaml:3:10:", "'a::b'", "first at c.yaml:2:10"}},
    {"policy_twice", "casts:\n  half: [a::b]\n  half: [a::c]", {"c.yaml:3:3:", "'half'", "c.yaml:2:3"}},
    {"block_twice", "casts:\ncasts:\n", {"c.yaml:2:1:", "'casts'", "c.yaml:1:1"}},
    {"empty", "", {"c.yaml:", "nothing", "base: built_in"}},
    {"a_list", "- aten::mm", {"c.yaml:1:1:", "a list", "base: built_in"}},
    {"no_yaml", "casts: [", {"c.yaml:", "not valid YAML"}},
    {"under_amp", "amp: {casts: }", {"c.yaml:1:1:", "'amp'"}},
};

class CastListsError : public ::testing::TestWithParam<CastListRow> {};

TEST_P(CastListsError, NamesThePlace) {
  const CallResult result = result_of([] { CastLists::from_yaml_string(GetParam().yaml, "c.yaml"); });
  EXPECT_EQ(result.outcome, Outcome::value_error) << result.message;
  for (const char* part : GetParam().message) expect_mentions(result.message, part);
}

INSTANTIATE_TEST_SUITE_P(Rows, CastListsError, ::testing::ValuesIn(kCastListRows),
                         [](const auto& test) { return test.param.name; });

class CastListsRoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(CastListsRoundTrip, GivesEqualLists) {
  const auto lists = CastLists::from_yaml_string(GetParam());
  EXPECT_EQ(CastLists::from_yaml_string(lists.to_yaml()), lists) << lists.to_yaml();
}

INSTANTIATE_TEST_SUITE_P(Texts, CastListsRoundTrip,
                         ::testing::Values("base: built_in", "base: none", "extensions: false",
                                           "casts: {none: [aten::softmax], half: [mylib::op.Tensor]}",
                                           "base: none\nmatch: {float32: [a::b]}"));

TEST(CastListsText, IsGroupedByPolicy) {
  const auto lists = CastLists::from_yaml_string("base: none\ncasts: {half: [a::d, a::b.c], none: [a::a]}");
  EXPECT_EQ(lists.to_yaml(), "base: none\ncasts:\n  none:\n    - a::a\n  half:\n    - a::b.c\n    - a::d\n");
}

TEST(LevelWithCasts, AcceptsAMapAtAnyLevel) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    const std::string text = std::string("opt_level: ") + level + "\ncasts: {base: none, casts: {half: [a::b]}}\n";
    const auto expected = CastLists::from_yaml_string("base: none\ncasts: {half: [a::b]}");
    const auto read = OptLevel::from_yaml_string(text);
    EXPECT_EQ(read.overrides().casts(), expected);
    EXPECT_EQ(resolve(read).casts, expected);
    EXPECT_EQ(OptLevel::from_yaml_string(read.to_yaml()), read) << read.to_yaml();
    EXPECT_EQ(OptLevel::from_yaml_string("amp:\n  " + text.substr(0, 13) + "\n  " + text.substr(14)), read);
  }
}

TEST(LevelWithCasts, UsesTheBuiltInListsByDefault) {
  EXPECT_EQ(resolve("O1").casts, CastLists::built_in());
  EXPECT_EQ(resolve(OptLevel::from_yaml_string("casts: none")).casts, CastLists::built_in());
}

TEST(LevelWithCasts, IsOverriddenByOptions) {
  const auto level = OptLevel::from_yaml_string("casts: {base: none}");
  const auto lists = CastLists::from_yaml_string("base: none\ncasts: {half: [a::b]}");
  EXPECT_EQ(resolve(level, InitializeOptions().casts(lists)).casts, lists);
  EXPECT_EQ(resolve(level).casts, CastLists());
}

TEST(LevelWithCasts, RejectsAListAndInvalidMapEntries) {
  expect_error(Outcome::value_error, {"c.yaml:1:8:", "casts", "a list", "a path"},
               [] { OptLevel::from_yaml_string("casts: [aten::mm]", "c.yaml"); });
  expect_error(Outcome::value_error, {"c.yaml:2:3:", "'opt_level'"},
               [] { OptLevel::from_yaml_string("casts:\n  opt_level: O1", "c.yaml"); });
  expect_error(Outcome::value_error, {"c.yaml:3:12:", "'mm'"},
               [] { OptLevel::from_yaml_string("casts:\n  casts:\n    half: [mm]", "c.yaml"); });
}

TEST(CastListsText, AllMistakesAreReportedTogether) {
  expect_error(Outcome::value_error,
               {"c.yaml:2:10: found 'mm'", "\nc.yaml:2:14: found 'a b'", "\nc.yaml:3:3: unknown key 'flat'"},
               [] { CastLists::from_yaml_string("casts:\n  half: [mm, a b]\n  flat: [aten::mm]\n", "c.yaml"); });
}

class CastsFile : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
    written_.push_back(path);
  }
  void TearDown() override {
    for (const auto& path : written_) std::remove(path.c_str());
  }

  const std::string name_ = std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) +
                            std::to_string(getpid()) + ".apex_casts.yaml";
  const std::string path_ = ::testing::TempDir() + name_;
  const std::string level_path_ = ::testing::TempDir() + "level_" + name_;

 private:
  std::vector<std::string> written_;
};

TEST_F(CastsFile, IsReadLikeAString) {
  write(path_, "casts: {half: [aten::softmax]}");
  EXPECT_EQ(CastLists::from_yaml_file(path_), CastLists::from_yaml_string("casts: {half: [aten::softmax]}"));
}

TEST_F(CastsFile, IsRelativeToTheLevelFile) {
  write(path_, "casts: {half: [aten::softmax]}");
  write(level_path_, "opt_level: O1\ncasts: " + name_ + "\n");
  EXPECT_EQ(OptLevel::from_yaml_file(level_path_).overrides().casts(), CastLists::from_yaml_file(path_));
}

TEST_F(CastsFile, MayBeAnAbsolutePath) {
  write(path_, "base: none");
  EXPECT_EQ(OptLevel::from_yaml_string("casts: '" + path_ + "'").overrides().casts(), CastLists());
}

TEST_F(CastsFile, IsNamedInErrors) {
  write(path_, "casts: {half: [mm]}");
  expect_error(Outcome::value_error, {(path_ + ":1:16").c_str(), "'mm'"}, [&] { CastLists::from_yaml_file(path_); });
  write(level_path_, "casts: " + name_ + "\n");
  expect_error(Outcome::value_error, {(path_ + ":1:16").c_str(), "'mm'"}, [&] { OptLevel::from_yaml_file(level_path_); });
}

TEST_F(CastsFile, IfMissingIsAnErrorWithItsName) {
  expect_error(Outcome::runtime_error, {path_.c_str(), "cannot read", "No such file"},
               [&] { CastLists::from_yaml_file(path_); });
}

}  // namespace
}  // namespace apex::opt_levels::testing
