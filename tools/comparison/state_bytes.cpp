#include "state_bytes.h"

#include <cstdint>
#include <numeric>

#include <apex_cpp/amp/checkpoint/safetensors_header.h>
#include <apex_cpp/files/atomic_file.h>
#include <apex_cpp/files/csv.h>
#include <c10/util/Exception.h>

#include "common/user_error.h"
#include "kernels/rules/quantized.h"

namespace comparison {
namespace {

namespace detail = apex::amp::detail;

// What a safetensors file begins with; the tensors behind it are not read.
detail::TensorHeader header_of(const std::string& path) {
  try {
    detail::InputFile file(path);
    uint64_t length = 0;
    file.read(&length, sizeof(length));
    TORCH_CHECK(length <= file.size() - sizeof(length), path, ": the header is longer than the file.");
    std::string text(length, ' ');
    file.read(text.data(), text.size());
    return detail::parse_header(text, file.size() - sizeof(length) - length, path);
  } catch (const c10::Error& error) {
    throw common::UserError("cannot read checkpoint '" + path + "': " + error.what_without_backtrace());
  }
}

struct Stored {
  std::string dtype;
  int64_t bytes;
};

// How the optimizer holds a tensor of the checkpoint, which has float32 moments whatever their storage.
Stored stored_as(const detail::TensorInfo& tensor, int64_t numel, const std::string& moment_storage) {
  const auto ends_with = [&](const std::string& end) {
    return tensor.name.size() >= end.size() && tensor.name.compare(tensor.name.size() - end.size(), end.size(), end) == 0;
  };
  if (ends_with("/exp_avg") || ends_with("/exp_avg_sq")) {
    if (moment_storage == "bfloat16") return {"BF16", 2 * numel};
    if (moment_storage == "int8") return {"I8", apex::kernels::rules::quantized_bytes(numel)};
  }
  return {detail::safetensors_name(tensor.dtype), static_cast<int64_t>(tensor.end - tensor.begin)};
}

}  // namespace

std::string optimizer_state(const std::string& checkpoint, const std::string& moment_storage) {
  std::string rows = "tensor,numel,dtype,bytes\n";
  for (const auto& tensor : header_of(checkpoint).tensors) {
    const std::string prefix = "optimizer0/state/";
    if (tensor.name.rfind(prefix, 0) != 0) continue;
    const auto numel = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    const Stored stored = stored_as(tensor, numel, moment_storage);
    rows += apex::csv_row(tensor.name.substr(prefix.size()), numel, stored.dtype, stored.bytes);
  }
  return rows;
}

}  // namespace comparison
