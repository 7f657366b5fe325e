#include <apex_cpp/amp/checkpoint/safetensors.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

#include <apex_cpp/amp/checkpoint/safetensors_header.h>
#include <apex_cpp/files/atomic_file.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written and read as they lie in memory");

namespace apex::amp::detail {
namespace {

using Names = std::vector<std::pair<std::string, at::Tensor>>;

constexpr size_t kLengthBytes = 8;

// Two keys, so that damage to the name of one is detected by the other. The checksum is the CRC-32C of the whole file with the
// digits of the checksum as zeros.
constexpr const char* kChecksumKey = "apex_cpp.crc32c";
constexpr const char* kFormatKey = "apex_cpp.format";
constexpr const char* kFormatVersion = "1";
constexpr const char* kNoDigits = "00000000";
constexpr size_t kDigits = 8;

/// The position of the checksum's digits in a header that this library wrote; npos if there is none.
size_t digits_in(const std::string& header) {
  const std::string before = "\"" + std::string(kChecksumKey) + "\":\"";
  const size_t found = header.find(before);
  return found == std::string::npos ? found : found + before.size();
}

std::string digits_of(const Crc32c& checksum) {
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x", checksum.value());
  return digits;
}

std::string length_bytes(uint64_t length) {
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

uint64_t length_in(const std::string& bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return length;
}

void check_writable(const TensorFile& file) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : file.tensors) {
    TORCH_CHECK_VALUE(names.insert(name).second && name != "__metadata__", "the tensor name ", shown(name),
                      " is reserved or used twice. Give every tensor a name of its own.");
    TORCH_CHECK_VALUE(tensor.defined(), "tensor ", shown(name), " is undefined. Leave it out.");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_meta(), "tensor ", shown(name),
                      " has no data that can be written (layout ", tensor.layout(), ", device ", tensor.device(),
                      "). Make it dense first.");
    TORCH_CHECK_VALUE(safetensors_name(tensor.scalar_type()), "tensor ", shown(name), " has dtype ",
                      c10::toString(tensor.scalar_type()), ", which safetensors files cannot hold. Convert it first.");
  }
  for (const char* key : {kChecksumKey, kFormatKey}) {
    TORCH_CHECK_VALUE(file.metadata.count(key) == 0, "the metadata key '", key,
                      "' is reserved for the library. Choose another key.");
  }
}

/// The indices of the tensors in the order of their data: tensors with large elements first, so that every tensor is aligned.
std::vector<size_t> data_order(const Names& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tensors[a].second.element_size() > tensors[b].second.element_size(); });
  return order;
}

TensorHeader describe(const TensorFile& file, const std::vector<size_t>& order) {
  TensorHeader header;
  header.metadata = file.metadata;
  header.metadata[kFormatKey] = kFormatVersion;
  header.metadata[kChecksumKey] = kNoDigits;
  for (const auto& [name, tensor] : file.tensors) {
    header.tensors.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), 0, 0});
  }
  uint64_t end = 0;
  for (const size_t i : order) {
    header.tensors[i].begin = end;
    header.tensors[i].end = end += file.tensors[i].second.nbytes();
  }
  return header;
}

/// A C++ bool has no byte value other than 0 and 1.
void check_booleans(const TensorInfo& info, const at::Tensor& tensor, const std::string& source) {
  if (info.dtype != at::kBool) return;
  const auto* begin = static_cast<const unsigned char*>(tensor.const_data_ptr());
  const auto* end = begin + tensor.nbytes();
  const auto* wrong = std::find_if(begin, end, [](unsigned char byte) { return byte > 1; });
  if (wrong == end) return;
  C10_THROW_ERROR(Error, c10::str(source, "tensor ", shown(info.name), ": element ", wrong - begin, " of dtype BOOL is ",
                                  static_cast<int>(*wrong), "."));
}

/// Reads the data in the order of the offsets; returns tensors in the order of the header.
Names read_data(InputFile& input, const std::vector<TensorInfo>& infos, Crc32c& checksum, const std::string& source) {
  std::vector<size_t> order(infos.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return infos[a].begin < infos[b].begin; });
  Names tensors(infos.size());
  for (const size_t i : order) {
    at::Tensor tensor = at::empty(infos[i].shape, at::TensorOptions(infos[i].dtype));
    if (infos[i].end > infos[i].begin) {
      input.read(tensor.mutable_data_ptr(), tensor.nbytes());
      checksum.add(tensor.const_data_ptr(), tensor.nbytes());
    }
    check_booleans(infos[i], tensor, source);
    tensors[i] = {infos[i].name, std::move(tensor)};
  }
  return tensors;
}

/// Removes the file's checksum from the metadata and returns it; empty for a file of another program.
std::string take_checksum(std::map<std::string, std::string>& metadata, const std::string& source) {
  const auto digits = metadata.find(kChecksumKey);
  const auto format = metadata.find(kFormatKey);
  if (digits == metadata.end() && format == metadata.end()) return {};
  TORCH_CHECK(digits != metadata.end() && format != metadata.end(), source, "its metadata has '",
              digits != metadata.end() ? kChecksumKey : kFormatKey, "' but not '",
              digits != metadata.end() ? kFormatKey : kChecksumKey, "': the file is damaged.");
  TORCH_CHECK(format->second == kFormatVersion, source, "its format is ", shown(format->second),
              ", this version of apex_cpp reads '", kFormatVersion, "'. Use a newer one.");
  std::string result = digits->second;
  TORCH_CHECK(result.size() == kDigits, source, "its checksum ", shown(result), " is malformed: the file is damaged.");
  metadata.erase(digits);
  metadata.erase(kFormatKey);
  return result;
}

}  // namespace

void write_safetensors(const std::string& path, const TensorFile& file) {
  check_writable(file);
  const auto order = data_order(file.tensors);
  const std::string header = header_text(describe(file, order));
  TORCH_CHECK_VALUE(header.size() <= kLongestHeader, "cannot write '", path, "': names and metadata take ", header.size(),
                    " bytes, but a safetensors header holds at most ", kLongestHeader, ". Store less in the metadata.");
  const std::string front = length_bytes(header.size()) + header;
  AtomicFile output(path);
  Crc32c checksum;
  const auto append = [&](const void* data, size_t bytes) {
    checksum.add(data, bytes);
    output.write(data, bytes);
  };
  append(front.data(), front.size());
  for (const size_t i : order) {
    const at::Tensor& tensor = file.tensors[i].second;
    const at::Tensor data = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
    append(data.const_data_ptr(), data.nbytes());
  }
  output.overwrite(static_cast<off_t>(kLengthBytes + digits_in(header)), digits_of(checksum).data(), kDigits);
  output.commit();
}

TensorFile read_safetensors(const std::string& path) {
  const std::string source = "cannot read '" + path + "': ";
  InputFile input(path);
  TORCH_CHECK(input.size() >= kLengthBytes, source, input.size(), " bytes are too few for a safetensors file.");
  std::string length(kLengthBytes, '\0');
  input.read(length.data(), kLengthBytes);
  const uint64_t header_bytes = length_in(length);
  TORCH_CHECK(header_bytes <= input.size() - kLengthBytes && header_bytes <= kLongestHeader, source, "its header would be ",
              header_bytes, " bytes long, the file is ", input.size(), ". It was cut short, or it is not a safetensors file.");
  std::string header(header_bytes, '\0');
  input.read(header.data(), header_bytes);
  TensorHeader described = parse_header(header, input.size() - kLengthBytes - header_bytes, source);
  const std::string wanted = take_checksum(described.metadata, source);
  const size_t digits = digits_in(header);
  if (digits != std::string::npos && header.size() - digits > kDigits) header.replace(digits, kDigits, kNoDigits);
  Crc32c checksum;
  checksum.add(length.data(), kLengthBytes);
  checksum.add(header.data(), header_bytes);
  TensorFile file{read_data(input, described.tensors, checksum, source), std::move(described.metadata)};
  TORCH_CHECK(
      wanted.empty() || wanted == digits_of(checksum), source, "its data has the checksum ", digits_of(checksum),
      ", but the file records ", shown(wanted),
      ": the file is damaged. (If another program changed the file on purpose, that program must remove the metadata keys '",
      kChecksumKey, "' and '", kFormatKey, "'.)");
  return file;
}

}  // namespace apex::amp::detail
