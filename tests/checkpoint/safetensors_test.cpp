// Safetensors files: every dtype, shape and layout is read back bit for bit.
#include <ATen/Functions.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/files/atomic_file.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "tests/checkpoint/failing_calls.h"
#include "tests/checkpoint/raw_safetensors.h"
#include "tests/errors.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace {

using amp::detail::read_safetensors;
using amp::detail::TensorFile;
using amp::detail::write_safetensors;

/// A tensor of any dtype with increasing bytes.
at::Tensor counting(c10::ScalarType dtype, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions(dtype));
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(dtype == at::kBool ? i % 3 == 0 : 7 * i + 3);
  }
  return tensor;
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.resolve_conj().resolve_neg().contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

void expect_same(const at::Tensor& read, const at::Tensor& written, const std::string& name) {
  EXPECT_EQ(read.scalar_type(), written.scalar_type()) << name;
  EXPECT_EQ(read.sizes(), written.sizes()) << name;
  EXPECT_EQ(bytes_of(read), bytes_of(written)) << name;
  EXPECT_TRUE(read.is_contiguous() && read.is_cpu() && !read.requires_grad()) << name;
}

void expect_same(const TensorFile& read, const TensorFile& written) {
  EXPECT_EQ(read.metadata, written.metadata);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (size_t i = 0; i < written.tensors.size(); ++i) {
    EXPECT_EQ(read.tensors[i].first, written.tensors[i].first);
    expect_same(read.tensors[i].second, written.tensors[i].second, written.tensors[i].first);
  }
}

TensorFile round_trip(const TensorFile& file) {
  Scratch scratch;
  write_safetensors(scratch / "a", file);
  return read_safetensors(scratch / "a");
}

TEST(Crc32c, AgreesWithPublishedValues) {
  const auto value_of = [](const std::string& text) {
    amp::detail::Crc32c checksum;
    // In pieces of different sizes, which must not matter.
    for (size_t at = 0, size = 1; at < text.size(); at += size, size = size % 13 + 1) {
      checksum.add(text.data() + at, std::min(size, text.size() - at));
    }
    return checksum.value();
  };
  // RFC 3720, B.4.
  EXPECT_EQ(value_of("123456789"), 0xE3069283);
  EXPECT_EQ(value_of(std::string(32, '\0')), 0x8A9136AA);
  EXPECT_EQ(value_of(std::string(32, '\xff')), 0x62A8AB43);
  std::string rising;
  for (char i = 0; i < 32; ++i) rising += i;
  EXPECT_EQ(value_of(rising), 0x46DD794E);
}

TEST(Safetensors, EveryDtypeAndShapeIsReadBackBitForBit) {
  TensorFile file;
  for (const auto dtype : all_safetensors_dtypes()) {
    const bool packed = dtype == c10::ScalarType::Float4_e2m1fn_x2;
    const std::vector<std::vector<int64_t>> shapes = {{}, {0}, {1}, {7}, {3, 0, 2}, {2, 3, 5}, {1, 1, 1, 1, 1, 1, 9}};
    for (const auto& shape : shapes) {
      if (packed && shape.empty()) continue;  // a packed dtype needs a dimension
      file.tensors.emplace_back(std::string(c10::toString(dtype)) + " " + c10::str(at::IntArrayRef(shape)),
                                counting(dtype, shape));
    }
  }
  expect_same(round_trip(file), file);
}

// All at the same place of the file.
TEST(Safetensors, ManyTensorsWithoutElementsAreReadBack) {
  TensorFile file;
  for (int i = 0; i < 41; ++i) file.tensors.emplace_back(std::to_string(i), counting(at::kFloat, {0}));
  expect_same(round_trip(file), file);
}

TEST(Safetensors, NamesAndMetadataAreReadBackUnchanged) {
  TensorFile file;
  for (const char* name : {"", " ", "a.b.c", "\"quoted\"", "back\\slash", "line\nbreak", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82",
                           "dtype", "apex_cpp.crc32c", "\x01\x1f\x7f"}) {
    file.tensors.emplace_back(name, counting(at::kFloat, {2}));
    file.metadata[std::string("key ") + name] = std::string("value ") + name + "{\"json\": [1, 2]}";
  }
  file.tensors.emplace_back(std::string("nul\0in it", 9), counting(at::kFloat, {2}));
  // Text that looks like the checksum field.
  file.metadata["a"] = "\"apex_cpp.crc32c\":\"00000000\"";
  file.metadata[""] = "";
  expect_same(round_trip(file), file);
  expect_same(round_trip({}), {});
}

TEST(Safetensors, ViewsAndSharedTensorsAreWrittenCompletely) {
  const at::Tensor base = counting(at::kFloat, {4, 6});
  const at::Tensor complex = counting(at::kComplexFloat, {3, 2});
  const TensorFile file{{{"base", base},
                         {"again", base},
                         {"transposed", base.t()},
                         {"strided", base.slice(1, 1, 6, 2)},
                         {"expanded", base.select(0, 1).expand({3, 6})},
                         {"channels_last", counting(at::kHalf, {2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)},
                         {"conjugated", complex.conj()},
                         {"negated", at::imag(complex.conj())},
                         {"parameter", counting(at::kFloat, {3}).abs().requires_grad_()}},
                        {}};
  TensorFile dense = file;
  for (auto& [name, tensor] : dense.tensors) tensor = tensor.detach().clone();
  expect_same(round_trip(file), dense);
}

// Readers that map the file into memory need tensors aligned to their elements.
TEST(Safetensors, EveryTensorIsAlignedInTheFile) {
  Scratch scratch;
  TensorFile file;
  for (const auto dtype : all_safetensors_dtypes()) file.tensors.emplace_back(c10::toString(dtype), counting(dtype, {3}));
  write_safetensors(scratch / "a", file);
  const std::string content = scratch.read("a");
  const std::string header = header_of(content);
  EXPECT_EQ(header.size() % 8, 0u);
  for (const auto& [name, tensor] : file.tensors) {
    const auto entry = header.find("\"" + name + "\":{");
    ASSERT_NE(entry, std::string::npos);
    const auto offset = std::stoul(header.substr(header.find("data_offsets\":[", entry) + 15));
    EXPECT_EQ(offset % tensor.element_size(), 0u) << name;
    EXPECT_EQ(content.substr(8 + header.size() + offset, tensor.nbytes()), bytes_of(tensor)) << name;
  }
}

TEST(Safetensors, UnsupportedContentIsAnErrorThatKeepsTheOldFile) {
  Scratch scratch;
  scratch.write("a", "old");
  const auto error_of = [&](const TensorFile& file) {
    return message_of<c10::ValueError>([&] { write_safetensors(scratch / "a", file); });
  };
  const at::Tensor x = counting(at::kFloat, {2});
  const auto expect_error = [&](const TensorFile& file, const std::string& part) {
    const std::string error = error_of(file);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect_error({{{"w", x}, {"w", x}}, {}}, "\"w\" is reserved or used twice");
  expect_error({{{"__metadata__", x}}, {}}, "\"__metadata__\" is reserved or used twice");
  expect_error({{{"w", at::Tensor()}}, {}}, "\"w\" is undefined");
  expect_error({{{"w", x.to_sparse()}}, {}}, "\"w\" has no data that can be written");
  expect_error({{{"w", x.to(at::kMeta)}}, {}}, "\"w\" has no data that can be written");
  expect_error({{{"w", x.to(at::kComplexDouble)}}, {}}, "\"w\" has dtype ComplexDouble");
  expect_error({{{"w\xff", x}}, {}}, "is not UTF-8");
  expect_error({{{"w", x}}, {{"k", "\xc3"}}}, "is not UTF-8");
  expect_error({{{"w", x}}, {{"apex_cpp.crc32c", "0"}}}, "reserved for the library");
  expect_error({{{"w", x}}, {{"k", std::string(100'000'000, 'x')}}}, "Store less");
  expect_error({{{"w", counting(c10::ScalarType::Float4_e2m1fn_x2, {})}}, {}}, "\"w\"");
  EXPECT_EQ(scratch.read("a"), "old");
  EXPECT_EQ(entries_of(scratch.path()), std::vector<std::string>{"a"});
}

TEST(Safetensors, AFailureOrAKillAtAnyCallKeepsALoadableFile) {
  Scratch scratch;
  const TensorFile before{{{"w", counting(at::kFloat, {5})}, {"b", counting(at::kHalf, {3})}}, {{"step", "1"}}};
  const TensorFile after{{{"w", counting(at::kDouble, {7})}, {"b", counting(at::kBool, {3})}}, {{"step", "2"}}};
  const auto write = [&] { write_safetensors(scratch / "a", after); };
  const auto is_whole = [&] {
    const TensorFile read = read_safetensors(scratch / "a");
    expect_same(read, read.metadata.at("step") == "1" ? before : after);
  };
  write_safetensors(scratch / "a", before);
  EXPECT_GE(fail_at_every_call(scratch.path(), ENOSPC, write, is_whole), 12);
  write_safetensors(scratch / "a", before);
  EXPECT_GE(kill_at_every_call(write, is_whole), 12);
  EXPECT_EQ(read_safetensors(scratch / "a").metadata.at("step"), "2");
}

}  // namespace
}  // namespace apex::test
