// Damaged, truncated and hostile files are errors that name the problem. Files of other writers are read.
#include <ATen/Functions.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/checkpoint/memory_file.h"
#include "tests/checkpoint/raw_safetensors.h"
#include "tests/errors.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace {

using amp::detail::read_safetensors;
using amp::detail::TensorFile;
using amp::detail::write_safetensors;

class SafetensorsDamage : public ::testing::Test {
 protected:
  // Thousands of errors: collecting a backtrace for each would take most of the time.
  static void SetUpTestSuite() {
    c10::SetStackTraceFetcher([] { return std::string(); });
  }

  /// The error of reading a file with these bytes; empty if it is read.
  std::string error_of(const std::string& content) {
    const MemoryFile file(content);
    path_ = file.path();
    return message_of<c10::Error>([&] { read_safetensors(path_); });
  }

  void expect_error(const std::string& content, const std::string& part) {
    const std::string error = error_of(content);
    EXPECT_NE(error.find(part), std::string::npos) << "error: " << error << "\nlacks: " << part;
    EXPECT_NE(error.find("'" + path_ + "': "), std::string::npos) << "names no file: " << error;
    EXPECT_LT(error.size(), 1500u);
  }
  void expect_header_error(const std::string& header, const std::string& part, const std::string& data = "") {
    expect_error(raw_safetensors(header, data), part);
  }

  std::string small_file() {
    const TensorFile file{{{"weight", at::arange(4, at::kFloat)}, {"flag", at::ones({3}, at::kBool)}}, {{"step", "12"}}};
    write_safetensors(scratch_ / "small", file);
    return scratch_.read("small");
  }

  Scratch scratch_;
  std::string path_;  // of the file read last
};

TEST_F(SafetensorsDamage, EveryFlippedBitIsAnError) {
  const std::string whole = small_file();
  ASSERT_EQ(error_of(whole), "");
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    expect_error(flipped, "");
  }
}

TEST_F(SafetensorsDamage, EveryTruncationAndEveryExtraByteIsAnError) {
  const std::string whole = small_file();
  for (size_t size = 0; size < whole.size(); ++size) expect_error(whole.substr(0, size), "");
  expect_error(whole + '\0', "its tensors end at 19, its data at 20");
}

TEST_F(SafetensorsDamage, ADamagedTensorIsAChecksumError) {
  std::string damaged = small_file();
  damaged[damaged.size() - 10] = 'x';
  expect_error(damaged, "the file is damaged");
}

TEST_F(SafetensorsDamage, FilesOfOtherWritersAreRead) {
  const std::string data("\1\0\0\0\2\0\0\0\3", 9);
  const auto read = [&](const std::string& header) {
    scratch_.write("other", raw_safetensors(header, data));
    return read_safetensors(scratch_ / "other");
  };
  // Spaces, fields and entries in any order, escapes, no metadata, padding, the data in another order than the header.
  const TensorFile file = read(
      "{ \"b\\u00e4\" : {\"data_offsets\":[8,9],\"dtype\":\"U8\",\"shape\":[]},\n\t\"a\":{\"shape\":[2,1],\"dtype\":\"I32\","
      "\"data_offsets\":[0,8]}}     ");
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].first, "b\xc3\xa4");
  EXPECT_EQ(file.tensors[0].second.item<int64_t>(), 3);
  EXPECT_TRUE(file.tensors[1].second.equal(at::tensor({1, 2}, at::kInt).view({2, 1})));
  EXPECT_TRUE(file.metadata.empty());
  // A tensor without elements, at either end or in between.
  const TensorFile empty =
      read(R"({"z":{"dtype":"F32","shape":[0,5],"data_offsets":[9,9]},"y":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
           R"("__metadata__":{"format":"pt"},"x":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})");
  EXPECT_EQ(empty.tensors[0].second.sizes(), at::IntArrayRef({0, 5}));
  EXPECT_EQ(empty.metadata.at("format"), "pt");
}

TEST_F(SafetensorsDamage, WrongLengthsAreErrors) {
  expect_error("", "0 bytes are too few");
  expect_error("1234567", "7 bytes are too few");
  expect_error(raw_safetensors(3, "{}", ""), "its header would be 3 bytes long, the file is 10");
  expect_error(raw_safetensors(~uint64_t{0}, "{}", ""), "its header would be 18446744073709551615 bytes long");
  expect_error(raw_safetensors(uint64_t{1} << 63, "{}", ""), "its header would be");
  expect_error(raw_safetensors(100'000'001, std::string(100'000'001, ' '), ""), "its header would be 100000001 bytes");
  expect_error("PK\3\4 this is a zip file, and so it begins otherwise", "it is not a safetensors file");
}

TEST_F(SafetensorsDamage, InvalidJsonIsAnError) {
  for (const char* header : {"", "[]", "null", " {}", "\xef\xbb\xbf{}", "1"}) {
    expect_header_error(header, "its header is not a JSON object");
  }
  for (const char* header : {"{", "{}}", "{\"a\"}", "{\"a\":}", "{,}", "{\"a\xff\":{}}", "{'a':{}}", "{\"a\":{\"shape\":[1,]}}",
                             "{\"\\ud800\":{}}", "{}x", "{\"a\":{\"shape\":[01]}}"}) {
    expect_header_error(header, "its header is not valid JSON at byte");
  }
  expect_header_error(std::string("{}\0", 3), "its header is not a JSON object");
}

TEST_F(SafetensorsDamage, AHeaderOfAnotherStructureIsAnError) {
  expect_header_error(R"({"a":1})", "\"a\": found a number");
  expect_header_error(R"({"a":"x"})", "\"a\": found a string");
  expect_header_error(R"({"a":null})", "\"a\": found null");
  expect_header_error(R"({"a":[]})", "\"a\": found a list");
  expect_header_error(R"({"a":{}})", "\"a\": dtype, shape or data_offsets is missing");
  expect_header_error(R"({"a":{"dtype":"U8","shape":[0]}})", "missing");
  expect_header_error(R"({"a":{"dtype":5}})", "found a number");
  expect_header_error(R"({"a":{"dtype":"F31"}})", "the dtype \"F31\" is not known");
  expect_header_error(R"({"a":{"dtype":"U8","dtype":"U8"}})", "the field \"dtype\" appears twice");
  expect_header_error(R"({"a":{"stride":[1]}})", "the field \"stride\" is not known");
  expect_header_error(R"({"a":{"shape":["1"]}})", "found a string");
  expect_header_error(R"({"a":{"shape":[-1]}})", "found -1");
  expect_header_error(R"({"a":{"shape":[1.0]}})", "found 1.0");
  expect_header_error(R"({"a":{"shape":[[1]]}})", "found a list");
  expect_header_error(R"({"a":{"shape":{}}})", "found an object");
  expect_header_error(R"({"a":{"shape":[18446744073709551615]}})", "is too large");
  expect_header_error(R"({"a":{"shape":[18446744073709551616]}})", "found 18446744073709551616");
  expect_header_error(R"({"a":{"data_offsets":[0]}})", "fewer than two");
  expect_header_error(R"({"a":{"data_offsets":[0,0,0]}})", "more than two");
  expect_header_error(R"({"__metadata__":[]})", "found a list");
  expect_header_error(R"({"__metadata__":{"k":1}})", "found a number");
  expect_header_error(R"({"__metadata__":{"k":{}}})", "found an object");
  expect_header_error(R"({"__metadata__":{"k":"1","k":"1"}})", "\"k\" appears twice");
  expect_header_error(R"({"__metadata__":{},"__metadata__":{}})", "twice");
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_header_error("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}", "tensor \"a\" appears twice");
}

TEST_F(SafetensorsDamage, WrongSizesAndOffsetsAreErrors) {
  const auto tensor = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string("{\"dtype\":\"") + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const auto expect = [&](const std::string& entries, const std::string& part) {
    expect_header_error("{" + entries + "}", part, "01234567");
  };
  expect("\"a\":" + tensor("U8", "[9]", "[0,9]"), "its data ends at 9, the file's data at 8. The file was cut short");
  expect("\"a\":" + tensor("U8", "[7]", "[0,7]"), "its tensors end at 7, its data at 8");
  expect("\"a\":" + tensor("U8", "[7]", "[1,8]"), "its data starts at 1, the data before it ends at 0");
  expect("\"a\":" + tensor("U8", "[8]", "[8,0]"), "its data starts at 8");
  expect("\"a\":" + tensor("F32", "[1]", "[0,8]"), "need 4 bytes, data_offsets are [0, 8]");
  expect("\"a\":" + tensor("U8", "[8]", "[0,8]") + ",\"b\":" + tensor("U8", "[4]", "[4,8]"), "\"b\": its data starts at 4");
  expect("\"a\":" + tensor("U8", "[8]", "[0,8]") + ",\"b\":" + tensor("U8", "[8]", "[0,8]"), "its data starts at 0");
  expect("\"a\":" + tensor("U8", "[4]", "[0,4]") + ",\"b\":" + tensor("U8", "[2]", "[6,8]"), "\"b\": its data starts at 6");
  expect("\"a\":" + tensor("F4", "[15]", "[0,8]"), "F4 values come in pairs");
  expect("\"a\":" + tensor("F4", "[]", "[0,8]"), "F4 values come in pairs");
  // Sizes whose product overflows to 8, and an empty tensor with more elements than torch can count.
  expect("\"a\":" + tensor("U8", "[4611686018427387905,8]", "[0,8]"), "more elements than can be counted");
  expect("\"a\":" + tensor("F64", "[2305843009213693953]", "[0,8]"), "more elements than can be counted");
  expect("\"a\":" + tensor("U8", "[0,4294967296,4294967296]", "[0,0]"), "more elements than can be counted");
  expect("\"a\":" + tensor("BOOL", "[8]", "[0,8]"), "element 0 of dtype BOOL is 48");
}

TEST_F(SafetensorsDamage, InvalidChecksumFieldsAreErrors) {
  expect_header_error(R"({"__metadata__":{"apex_cpp.crc32c":"00000000"}})", "but not 'apex_cpp.format'");
  expect_header_error(R"({"__metadata__":{"apex_cpp.format":"1"}})", "but not 'apex_cpp.crc32c'");
  expect_header_error(R"({"__metadata__":{"apex_cpp.crc32c":"0","apex_cpp.format":"1"}})", "its checksum \"0\" is malformed");
  expect_header_error(R"({"__metadata__":{"apex_cpp.crc32c":"00000000","apex_cpp.format":"2"}})", "its format is \"2\"");
  expect_header_error(R"({"__metadata__":{"apex_cpp.crc32c":"00000000","apex_cpp.format":"1"}})", "the file is damaged");
}

TEST_F(SafetensorsDamage, DeepNestingAndLongTextsAreErrors) {
  const std::string deep(5'000'000, '[');
  expect_header_error("{\"a\":" + deep, "\"a\": found a list");
  expect_header_error("{\"__metadata__\":{\"a\":" + deep, "found a list");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"dtype\":";
  expect_header_error(objects, "found an object");
  expect_header_error("{\"" + std::string(5'000'000, 'n') + "\":1}", "(and so on): found a number");
}

TEST_F(SafetensorsDamage, AMissingFileAFolderAndAPipeAreErrors) {
  const auto error = [&](const std::string& path) { return message_of<c10::Error>([&] { read_safetensors(path); }); };
  EXPECT_NE(error(scratch_ / "none").find("No such file or directory"), std::string::npos);
  EXPECT_NE(error(scratch_.path()).find("not a regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo((scratch_ / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error(scratch_ / "pipe").find("not a regular file"), std::string::npos);  // and does not wait for a writer
}

}  // namespace
}  // namespace apex::test
