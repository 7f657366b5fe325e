#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include <ATen/ATen.h>
#include <zlib.h>

#include "data/cifar10.h"
#include "data/digits.h"
#include "data/load.h"
#include "data/mnist.h"
#include "data/shuffle.h"
#include "data/split.h"
#include "errors.h"
#include "scratch.h"
#include "tests/errors.h"

namespace {

using apex::test::message_of;
using train::UserError;

std::string digit_row(int value, int label) {
  std::string row;
  for (int i = 0; i < 64; ++i) {
    row += std::to_string(value) + ",";
  }
  return row + std::to_string(label) + "\n";
}

// `rows` rows, labels 0 to 9 in turn, the row's number modulo 17 as its grey value.
std::string digit_rows(int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) {
    text += digit_row(i % 17, i % 10);
  }
  return text;
}

std::string big_endian(int64_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift & 255);
  }
  return bytes;
}

std::string idx(std::vector<int64_t> sizes, const std::string& data) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const auto size : sizes) {
    bytes += big_endian(size);
  }
  return bytes + data;
}

void write_mnist(const Scratch& scratch) {
  scratch.write("train-images-idx3-ubyte", idx({2, 2, 3}, std::string("\x00\x01\x02\x03\x04\x05\xff\x07\x08\x09\x0a\x0b", 12)));
  scratch.write("train-labels-idx1-ubyte", idx({2}, std::string("\x07\x00", 2)));
  scratch.write("t10k-images-idx3-ubyte", idx({1, 2, 3}, "abcdef"));
  scratch.write("t10k-labels-idx1-ubyte", idx({1}, "\x09"));
}

void write_cifar10(const Scratch& scratch, const std::string& folder = "") {
  for (int batch = 1; batch <= 6; ++batch) {
    std::string record(3073, static_cast<char>(batch));
    record[3072] = '\xfe';  // the last blue pixel
    scratch.write(folder + (batch == 6 ? "test_batch.bin" : "data_batch_" + std::to_string(batch) + ".bin"), record);
  }
}

// An environment variable, which gets its value back.
class Kept {
 public:
  explicit Kept(const char* name) : name_(name), was_set_(std::getenv(name)), value_(was_set_ ? std::getenv(name) : "") {}
  ~Kept() { was_set_ ? setenv(name_, value_.c_str(), 1) : unsetenv(name_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

 private:
  const char* name_;
  bool was_set_;
  std::string value_;
};

TEST(Digits, RowsBecomeImagesAndLabels) {
  const Scratch scratch;
  std::string text;
  for (int row = 0; row < 50; ++row) {
    for (int pixel = 0; pixel < 64; ++pixel) {
      text += std::to_string((row + pixel * pixel) % 17) + ",";
    }
    text += std::to_string(row % 10) + "\n";
  }
  scratch.write("digits.csv", text);
  const auto data = train::load_digits(scratch.path());
  EXPECT_EQ(data.train.images.sizes(), (std::vector<int64_t>{40, 1, 8, 8}));
  EXPECT_EQ(data.test.images.sizes(), (std::vector<int64_t>{10, 1, 8, 8}));
  const auto images = at::cat({data.train.images, data.test.images}).flatten(1).to(at::kLong);
  const auto labels = at::cat({data.train.labels, data.test.labels});
  // Row r and label r % 10: rows that differ by 17 have equal images, and other labels.
  std::set<int64_t> found;
  for (int64_t i = 0; i < 50; ++i) {
    for (int64_t row = 0; row < 50; ++row) {
      const bool is_label = labels[i].item<int64_t>() == row % 10;
      if (is_label && images[i].equal((at::arange(64).square() + row) % 17)) found.insert(row);
    }
  }
  EXPECT_EQ(found.size(), 50u);
}

TEST(Digits, PackedFileAndWindowsLineEndsReadTheSame) {
  const Scratch plain, packed;
  plain.write("digits.csv", digit_rows(50));
  auto file = gzopen((packed / "digits.csv.gz").c_str(), "wb");
  std::string text = digit_rows(50);
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) {
    text.replace(at, 1, "\r\n");
  }
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const auto one = train::load_digits(plain.path());
  const auto other = train::load_digits(packed.path());
  EXPECT_TRUE(one.train.images.equal(other.train.images));
  EXPECT_TRUE(one.test.labels.equal(other.test.labels));
}

TEST(Digits, BadRowsAreNamedByLine) {
  const std::string good = digit_rows(20);
  for (const auto& bad : {std::string("1,2,3\n"), digit_row(17, 3), digit_row(-1, 3), digit_row(3, 10), "x" + digit_row(3, 1),
                          std::string("\n"), digit_row(3, 1).substr(0, 100), "1," + digit_row(3, 1)}) {
    const Scratch scratch;
    scratch.write("digits.csv", good + bad + good);
    const auto message = message_of<UserError>([&] { train::load_digits(scratch.path()); });
    EXPECT_EQ(message.rfind(scratch / "digits.csv:21: expected 64 values", 0), 0u) << message;
  }
}

TEST(Digits, MissingEmptyAndTruncatedFilesAreErrors) {
  const Scratch scratch;
  const auto load = [&] { train::load_digits(scratch.path()); };
  EXPECT_EQ(message_of<UserError>(load).rfind("cannot open '" + scratch.path(), 0), 0u);
  auto file = gzopen((scratch / "digits.csv.gz").c_str(), "wb");
  const auto text = digit_rows(500);
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const auto packed = scratch.read("digits.csv.gz");
  scratch.write("digits.csv.gz", packed.substr(0, packed.size() / 2));
  EXPECT_NE(message_of<UserError>(load).find("ends too early"), std::string::npos);
  scratch.write("digits.csv", "");
  EXPECT_NE(message_of<UserError>(load).find("0 rows are too few"), std::string::npos);
}

TEST(Split, IsStratifiedReproducibleAndComplete) {
  train::Dataset all{at::arange(230).to(at::kByte).view({230, 1, 1, 1}), at::arange(230) % 10};
  all.labels.narrow(0, 200, 30).fill_(3);  // class 3 is larger than the others
  train::Dataset part, rest, part_again, rest_again;
  train::stratified_split(all, 10, 0.2, part, rest);
  train::stratified_split(all, 10, 0.2, part_again, rest_again);
  EXPECT_TRUE(part.images.equal(part_again.images));
  EXPECT_TRUE(rest.images.equal(rest_again.images));
  const auto ids = std::get<0>(at::cat({part.images, rest.images}).flatten().sort());
  EXPECT_TRUE(ids.equal(at::arange(230).to(at::kByte)));
  for (int label = 0; label < 10; ++label) {
    EXPECT_EQ(rest.labels.eq(label).sum().item<int64_t>(), label == 3 ? 10 : 4) << "class " << label;
  }
}

TEST(Shuffle, DependsOnlyOnSeedAndStream) {
  const auto order = train::shuffled_indices(100, 7, 3);
  EXPECT_EQ(order, train::shuffled_indices(100, 7, 3));
  EXPECT_NE(order, train::shuffled_indices(100, 7, 4));
  EXPECT_NE(order, train::shuffled_indices(100, 8, 3));
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sorted[static_cast<size_t>(i)], i);
  }
  EXPECT_TRUE(train::shuffled_indices(0, 1, 1).empty());
}

TEST(Mnist, IdxFilesAreRead) {
  const Scratch scratch;
  write_mnist(scratch);
  const auto data = train::load_mnist(scratch.path());
  EXPECT_EQ(data.train.images.sizes(), (std::vector<int64_t>{2, 1, 2, 3}));
  EXPECT_EQ(data.train.images.select(0, 1).flatten()[0].item<int>(), 255);
  EXPECT_EQ(data.train.images.select(0, 0).flatten()[5].item<int>(), 5);
  EXPECT_TRUE(data.train.labels.equal(at::tensor({7, 0}, at::kLong)));
  EXPECT_EQ(data.test.labels[0].item<int>(), 9);
}

TEST(Mnist, BrokenFilesAreNamed) {
  const std::string images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte";
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {images, "", "too few for an IDX header"},
      {images, idx({2, 2, 3}, "").substr(0, 10), "too few for an IDX header"},
      {images, idx({2, 6}, "abcdefghijkl"), "wrong magic number"},
      {images, idx({2, 2, 3}, "abcdefghijk"), "more data than the 11 bytes"},
      {images, idx({2, 2, 3}, "abcdefghijklm"), "other data than the 13 bytes"},
      {images, idx({4294967295, 4294967295, 4294967295}, "abcdefghijkl"), "more data"},
      {images, idx({3, 2, 2}, "abcdefghijkl"), "2 labels for 3 images"},
      {labels, idx({2}, "\x01\x0a"), "label 10 of image 1 is not 0 to 9"},
  };
  for (const auto& [file, content, expected_part] : cases) {
    const Scratch scratch;
    write_mnist(scratch);
    scratch.write(file, content);
    const auto message = message_of<UserError>([&] { train::load_mnist(scratch.path()); });
    EXPECT_NE(message.find(expected_part), std::string::npos) << message;
    EXPECT_NE(message.find("train-"), std::string::npos) << message;
  }
}

TEST(Mnist, TestImagesOfAnotherSizeAreAnError) {
  const Scratch scratch;
  write_mnist(scratch);
  scratch.write("t10k-images-idx3-ubyte", idx({1, 3, 2}, "abcdef"));
  EXPECT_NE(message_of<UserError>([&] { train::load_mnist(scratch.path()); }).find("differ in size"), std::string::npos);
}

TEST(Cifar10, BinaryBatchesAreReadInPlanes) {
  const Scratch scratch, unpacked;
  write_cifar10(scratch);
  write_cifar10(unpacked, "cifar-10-batches-bin/");
  for (const auto* folder : {&scratch, &unpacked}) {
    const auto data = train::load_cifar10(folder->path());
    EXPECT_EQ(data.train.images.sizes(), (std::vector<int64_t>{5, 3, 32, 32}));
    EXPECT_TRUE(data.train.labels.equal(at::tensor({1, 2, 3, 4, 5}, at::kLong)));
    EXPECT_EQ(data.train.images[2][0][0][0].item<int>(), 3);
    EXPECT_EQ(data.train.images[2][2][31][31].item<int>(), 254);
    EXPECT_EQ(data.test.labels[0].item<int>(), 6);
  }
}

TEST(Cifar10, BrokenFilesAreNamed) {
  const Scratch scratch;
  const auto message = [&] { return message_of<UserError>([&] { train::load_cifar10(scratch.path()); }); };
  EXPECT_NE(message().find("data_batch_1.bin"), std::string::npos);
  write_cifar10(scratch);
  scratch.write("data_batch_3.bin", "");
  EXPECT_EQ(message(), scratch / "data_batch_3.bin: 0 bytes are not whole records of 3073 bytes");
  scratch.write("data_batch_3.bin", std::string(3072, '\0'));
  EXPECT_EQ(message(), scratch / "data_batch_3.bin: 3072 bytes are not whole records of 3073 bytes");
  scratch.write("data_batch_3.bin", std::string(3073, '\x0b'));
  EXPECT_EQ(message(), scratch / "data_batch_3.bin: label 11 of image 0 is not 0 to 9");
}

TEST(Normalized, ShiftsAndScalesEachChannel) {
  train::DataSplit data;
  data.mean = {1, 2};
  data.std_dev = {2, 4};
  const auto images = at::tensor({5, 10}, at::kByte).view({1, 2, 1, 1});
  const auto result = train::normalized(images, data);
  EXPECT_EQ(result.scalar_type(), at::kFloat);
  EXPECT_TRUE(result.flatten().equal(at::tensor({2.0f, 2.0f})));
}

// Bilinear interpolation with centres of pixels in their places: between two of them in quarters, and as they are beyond. To
// half the size, with every pixel's share in a triangle of two pixels' width.
TEST(Normalized, ResizesToTheConfigsSize) {
  train::DataSplit data;
  data.train.images = at::tensor({0, 8, 0, 8}, at::kByte).view({1, 1, 2, 2});
  data.mean = {0};
  data.std_dev = {1};
  data.image_size = 4;
  const auto shape = train::shape_of(data);
  EXPECT_EQ((std::vector<int64_t>{shape.channels, shape.height, shape.width}), (std::vector<int64_t>{1, 4, 4}));
  const auto larger = train::normalized(data.train.images, data);
  ASSERT_EQ(larger.sizes(), (std::vector<int64_t>{1, 1, 4, 4}));
  EXPECT_TRUE(larger.select(2, 3).flatten().equal(at::tensor({0.0f, 2.0f, 6.0f, 8.0f}))) << larger;
  data.image_size = 1;
  EXPECT_TRUE(train::normalized(data.train.images, data).flatten().equal(at::tensor({4.0f})));
  data.image_size = 0;
  EXPECT_EQ(train::shape_of(data).height, 2);
}

// Twenty grey images have 1280 pixels: the deviation of as many draws is off by 2 % (one in sqrt(2 * 1280)), here by up to five
// times that. Grey values above 10 are far from 0, where values end.
TEST(Noise, IsTheSameInEveryRunAndOfTheRequestedSize) {
  const Scratch scratch;
  std::string rows;
  for (int row = 0; row < 100; ++row) rows += digit_row(16, row % 10);
  scratch.write("digits.csv", rows);
  train::DataConfig config{"digits", scratch.path()};
  const auto plain = train::load_data(config);
  config.noise = 0.5;
  const auto noisy = train::load_data(config), again = train::load_data(config);
  EXPECT_TRUE(noisy.train.images.equal(again.train.images));
  EXPECT_TRUE(noisy.test.images.equal(again.test.images));
  EXPECT_TRUE(noisy.test.labels.equal(plain.test.labels));
  const auto apart = noisy.test.images.to(at::kDouble) - plain.test.images.to(at::kDouble);
  EXPECT_NEAR(apart.std().item<double>(), 0.5 * 6.017, 0.1 * 0.5 * 6.017);
  EXPECT_NEAR(apart.mean().item<double>(), 0, 5 * 0.5 * 6.017 / std::sqrt(1280.0));
  EXPECT_FALSE(noisy.train.images.narrow(0, 0, 20).equal(noisy.test.images));
}

// The same noise as without a scale: it is in the pixels.
TEST(Normalized, IsMultipliedByTheConfigsScaleThenIncreasedByItsOffset) {
  const Scratch scratch;
  std::string rows;
  for (int row = 0; row < 100; ++row) rows += digit_row(row % 17, row % 10);
  scratch.write("digits.csv", rows);
  train::DataConfig config{"digits", scratch.path()};
  config.noise = 0.5;
  const auto plain = train::load_data(config);
  config.scale = 4;
  config.offset = 100;
  const auto raw = train::load_data(config);
  EXPECT_TRUE(raw.test.images.equal(plain.test.images));
  const auto expected = train::normalized(plain.test.images, plain) * 4 + 100;
  // Values are below 128. Each way rounds at most six times, by at most 2^-24 of a value.
  EXPECT_LE((train::normalized(raw.test.images, raw) - expected).abs().max().item<double>(), 2 * 6 * 128 / std::pow(2, 24));
}

TEST(DataFolder, IsTheConfigsOrElseTheEnvironments) {
  const Kept data("APEX_CPP_DATA"), cache("APEX_CPP_CACHE"), xdg("XDG_CACHE_HOME"), home("HOME");
  for (const auto* name : {"APEX_CPP_CACHE", "XDG_CACHE_HOME"}) unsetenv(name);
  setenv("APEX_CPP_DATA", "/big/data", 1);
  EXPECT_EQ(train::data_folder({"mnist", "/mine"}), "/mine");
  EXPECT_EQ(train::data_folder({"mnist", ""}), "/big/data/mnist");
  unsetenv("APEX_CPP_DATA");
  setenv("APEX_CPP_CACHE", "/cache", 1);
  EXPECT_EQ(train::data_folder({"digits", ""}), "/cache/data/digits");
  unsetenv("APEX_CPP_CACHE");
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(train::data_folder({"digits", ""}), "/xdg/apex_cpp/data/digits");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/me", 1);
  EXPECT_EQ(train::data_folder({"cifar10", ""}), "/me/.cache/apex_cpp/data/cifar10");
}

}  // namespace
