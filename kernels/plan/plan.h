#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace apex::kernels::plan {

enum class Access { read, write };

// One list of a call.
struct TensorList {
  const char* name;  // for errors
  at::TensorList tensors;
  Access access;
  bool takes_double = true;
  const char* role = nullptr;     // follows the name in errors, if the name does not say the role
  bool takes_remainders = false;  // int16 and int8, of bfloat16 parameters
  bool takes_codes = false;       // uint8: moments in 8 bits (rules/quantized.h), which have a shape of their own
};

using TensorLists = c10::ArrayRef<TensorList>;

// Whether a list holds the remainders of bfloat16 values (rules/remainder.h).
constexpr bool is_remainder(at::ScalarType dtype) { return dtype == at::kShort || dtype == at::kChar; }

// Whether a list holds codes of moments.
constexpr bool is_code(at::ScalarType dtype) { return dtype == at::kByte; }

// Whether LibTorch allows this access: it writes tensors of inference mode there alone.
inline bool allows(Access access, const at::Tensor& tensor, bool in_inference_mode) {
  return access == Access::read || in_inference_mode || !tensor.is_inference();
}

// "params[1]", or with a role "tensor_lists[0][1] (params)".
std::string name_of(const TensorList& list, size_t index);

// Throws c10::Error unless the lists of the call `op` fit together as kernels/multi_tensor.h requires.
void check_lists(const char* op, TensorLists lists);

// Throws c10::Error unless `found_inf` is an int32 tensor of one element.
void check_found_inf(const char* op, const at::Tensor& found_inf);

// Throws c10::Error if an output shares memory with another tensor of the call. Exception: an output may be the input of its
// own index, with the same start and element size (an update in place). Tensors must be dense.
void check_outputs_apart(const char* op, TensorLists lists);

// Elements per chunk, the unit of work of a thread or block (MTA-01).
constexpr int64_t kChunkSize = 65536;

// The largest number of lists in a call.
constexpr size_t kMaxLists = 5;

// A part of a tensor: elements [offset, offset + size) of row `row` of a group.
struct Chunk {
  int64_t row;
  int64_t offset;
  int64_t size;
};

// Cuts tensors of `numels` elements into chunks, in order. Empty tensors get no chunk.
std::vector<Chunk> make_chunks(c10::ArrayRef<int64_t> numels, int64_t chunk_size = kChunkSize);

// The tensors of one index, with their address in each list.
struct TensorRow {
  size_t index;
  int64_t numel;
  std::array<void*, kMaxLists> data;
};

// Tensors that a driver can process in one pass: on one device, each list of one dtype, none empty.
struct Group {
  c10::Device device;
  std::array<at::ScalarType, kMaxLists> dtypes;  // at::kFloat after the last list
  std::vector<TensorRow> rows;
  std::vector<Chunk> chunks;
  int64_t numel = 0;  // of all rows together

  bool has_double() const;
};

// Splits lists into groups, in order of first appearance. The lists must have passed check_lists. The groups hold the tensors'
// addresses, but do not keep their memory alive.
std::vector<Group> make_groups(TensorLists lists);

}  // namespace apex::kernels::plan
