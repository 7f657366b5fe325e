// The readers of JSON and safetensors: exact values, and clear errors for malformed files.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/errors.h"
#include "tests/oracle/reading/json.h"
#include "tests/oracle/reading/safetensors.h"
#include "tests/oracle/verdict/compare.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;
using apex::test::expect_error;

TEST(Json, NumbersComeBackExactly) {
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

TEST(Json, QuotedAndPlainScalarsAreToldApart) {
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

TEST(Json, StringsMayHoldEscapesAndUnicode) {
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

TEST(Json, ANameThatAnObjectHasTwiceIsAnError) {
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

TEST(Json, AValueOutlivesItsDocumentsOwner) {
  const Json inner = Json::parse(R"({"a": {"b": [1, "two"]}})", "test").at("a").at("b");
  EXPECT_EQ(inner.items()[1].as_string(), "two");
  EXPECT_EQ(inner.where(), "test:/a/b");
  EXPECT_TRUE(Json().is_null());
}

// A safetensors file of the given header text and data. Its name is this process's own: tests run side by side.
class SafetensorsFile {
 public:
  SafetensorsFile(const std::string& header, const std::string& data, int64_t length_error = 0)
      : path_(fs::temp_directory_path() /
              ("oracle_reader_" + std::to_string(getpid()) + "_" + std::to_string(counter_++) + ".safetensors")) {
    std::ofstream file(path_, std::ios::binary);
    const uint64_t length = header.size() + static_cast<uint64_t>(length_error);
    for (int i = 0; i < 8; ++i) file.put(static_cast<char>(length >> (8 * i)));
    file << header << data;
  }
  ~SafetensorsFile() { fs::remove(path_); }
  const fs::path& path() const { return path_; }

 private:
  static inline int counter_ = 0;
  fs::path path_;
};

TEST(Safetensors, DtypesShapesAndValuesAreRead) {
  const SafetensorsFile file(
      R"({"__metadata__": {"made": "here"}, "f": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
          "h": {"dtype": "F16", "shape": [1, 1], "data_offsets": [8, 10]}, "e": {"dtype": "F64", "shape": [0], "data_offsets": [10, 10]},
          "b": {"dtype": "BOOL", "shape": [], "data_offsets": [10, 11]}})",
      std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x3c\x01", 11));
  const TensorMap tensors = read_safetensors(file.path());
  EXPECT_EQ(tensors.size(), 4u);
  EXPECT_TRUE(tensors.at("f").equal(at::tensor({1.0f, -2.0f})));
  EXPECT_TRUE(tensors.at("h").equal(at::ones({1, 1}, at::kHalf)));
  EXPECT_EQ(tensors.at("e").numel(), 0);
  EXPECT_TRUE(tensors.at("b").item<bool>());
}

TEST(Safetensors, MalformedFilesAreErrorsThatNameTheTensor) {
  const std::string four_bytes(4, '\0');
  auto read = [](const SafetensorsFile& file) { return [&file] { read_safetensors(file.path()); }; };
  const SafetensorsFile long_header("{}", "", 100);
  expect_error<std::runtime_error>(read(long_header), {"header length 102 reaches beyond"});
  const SafetensorsFile beyond(R"({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", four_bytes);
  expect_error<std::runtime_error>(read(beyond), {"tensor 'x': data_offsets do not lie in the file's 4 data bytes"});
  const SafetensorsFile mismatch(R"({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", four_bytes);
  expect_error<std::runtime_error>(read(mismatch), {"tensor 'x': shape and dtype need 8 bytes, data_offsets span 4"});
  const SafetensorsFile negative(R"({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", four_bytes);
  expect_error<std::runtime_error>(read(negative), {"size -1 cannot be"});
  const SafetensorsFile dtype(R"({"x": {"dtype": "F8", "shape": [4], "data_offsets": [0, 4]}})", four_bytes);
  expect_error<std::runtime_error>(read(dtype), {"dtype 'F8' is not supported"});
  const SafetensorsFile no_json("not json", "");
  expect_error<std::runtime_error>(read(no_json), {"(header)"});
  expect_error<std::runtime_error>([] { read_safetensors("/nonexistent/tensors.safetensors"); }, {"cannot be read"});
}

int failures(const at::Tensor& got, const at::Tensor& expected, const Tolerance& tolerance) {
  Report report;
  report.begin("item", "group");
  compare_tensor(report, "tensor", got, {expected, {}, {}}, tolerance);
  report.end();
  return report.failed();
}

TEST(Compare, BoundsAreKept) {
  Tolerance spacing;
  spacing.spacings = 1;
  const at::Tensor one = at::ones({1}, at::kHalf);
  EXPECT_EQ(failures(at::add(one, 0.0009765625), one, spacing), 0);
  EXPECT_EQ(failures(at::add(one, 0.001953125), one, spacing), 1);
  EXPECT_EQ(failures(one, one.to(at::kFloat), spacing), 1) << "dtypes are exact";
  EXPECT_EQ(failures(at::full({2}, NAN), at::full({2}, NAN), {}), 0);
  EXPECT_EQ(failures(at::full({2}, NAN), at::zeros({2}), {}), 1);
  EXPECT_EQ(failures(at::full({2}, INFINITY), at::full({2}, 3e38), {}), 1);
  EXPECT_EQ(failures(at::zeros({2, 1}), at::zeros({1, 2}), {}), 1) << "shapes are exact";
}

}  // namespace
}  // namespace oracle
