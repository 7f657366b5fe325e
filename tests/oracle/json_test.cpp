// The JSON of cases and tables: exact values, and errors that name the file and the place.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/errors.h"
#include "tests/oracle/reading/json.h"

namespace oracle {
namespace {

using apex::test::expect_error;

TEST(Json, NumbersAreReadExactly) {
  const Json json = Json::parse(R"({"pi": 3.141592653589793, "tiny": 5e-324, "negative": -0.1, "big": 9007199254740993,
                                    "largest": 9223372036854775807, "one": 1, "exponent": 1E+2})",
                                "test");
  EXPECT_EQ(json.at("pi").as_double(), 3.141592653589793);
  EXPECT_EQ(json.at("tiny").as_double(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(json.at("negative").as_double(), -0.1);
  EXPECT_EQ(json.at("big").as_int(), 9007199254740993);
  EXPECT_EQ(json.at("largest").as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(json.at("one").as_double(), 1.0);
  EXPECT_EQ(json.at("exponent").as_double(), 100.0);
}

TEST(Json, QuotedAndPlainScalarsAreDistinguished) {
  const Json json = Json::parse(R"(["128.0", 128.0, "true", true, "null", null, "inf", "-inf", "nan"])", "test");
  const auto& items = json.items();
  EXPECT_TRUE(items[0].is_string());
  EXPECT_TRUE(items[1].is_number());
  EXPECT_TRUE(items[2].is_string());
  EXPECT_TRUE(items[3].as_bool());
  EXPECT_TRUE(items[4].is_string());
  EXPECT_TRUE(items[5].is_null());
  EXPECT_EQ(items[6].as_double(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(items[7].as_double(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(items[8].as_double()));
}

TEST(Json, StringsMayContainEscapesAndUnicode) {
  const Json json = Json::parse(R"({"a": "tab\tquote\" \u00e9 é: {}", "empty": {}})", "test");
  EXPECT_EQ(json.at("a").as_string(), "tab\tquote\" é é: {}");
  EXPECT_TRUE(json.at("empty").members().empty());
}

TEST(Json, MalformedTextIsAnErrorWithItsPlace) {
  const auto parse = [](const char* text) { return [text] { Json::parse(text, "broken.json"); }; };
  expect_error<std::runtime_error>(parse("{\"a\": [1, 2"), {"broken.json: not JSON: "});
  expect_error<std::runtime_error>(parse("{\n  \"a\": unquoted\n}"), {"line 2, column 8"});
  for (const char* text :
       {"{\"a\": 01}", "{a: 1}", "", "{\"a\": 1}\n---\n{}", "{\"a\": 1} {}", "[NaN]", "[1,]", "// a remark\n[]"}) {
    expect_error<std::runtime_error>(parse(text), {"broken.json: not JSON: "});
  }
  expect_error<std::runtime_error>([] { Json::parse_file("/nonexistent/case.json"); }, {"cannot be read"});
}

TEST(Json, ADuplicateNameIsAnError) {
  expect_error<std::runtime_error>([] { Json::parse(R"({"a": 1, "b": {"c": 1, "c": 2}})", "twice.json"); },
                                   {R"(an object has the name "c" twice)"});
  EXPECT_EQ(Json::parse(R"({"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]})", "once.json").at("b").items().size(), 2u);
}

TEST(Json, WrongKindIsAnErrorWithThePathToTheValue) {
  const Json json = Json::parse(R"({"a": "text", "b": [0, {"c/d": 1.5}], "big": 9223372036854775808})", "kinds.json");
  expect_error<std::runtime_error>([&] { json.at("a").as_double(); }, {"kinds.json:/a: expected a number, found text"});
  expect_error<std::runtime_error>([&] { json.at("b").items()[1].at("c/d").as_int(); },
                                   {"kinds.json:/b/1/c~1d: expected an integer of 64 bits, found 1.5"});
  expect_error<std::runtime_error>([&] { json.at("big").as_int(); }, {"kinds.json:/big: expected an integer of 64 bits"});
  expect_error<std::runtime_error>([&] { json.at("b").members(); }, {"kinds.json:/b: expected an object, found [2 items]"});
  expect_error<std::runtime_error>([&] { json.at("c"); }, {"kinds.json: no member 'c'"});
  expect_error<std::runtime_error>([&] { json.at("a").as_bool(); }, {"expected true or false"});
  expect_error<std::runtime_error>([&] { json.at("b").as_string(); }, {"expected a string"});
}

TEST(Json, AValueOutlivesItsDocument) {
  const Json inner = Json::parse(R"({"a": {"b": [1, "two"]}})", "test").at("a").at("b");
  EXPECT_EQ(inner.items()[1].as_string(), "two");
  EXPECT_EQ(inner.where(), "test:/a/b");
  EXPECT_TRUE(Json().is_null());
}

}  // namespace
}  // namespace oracle
