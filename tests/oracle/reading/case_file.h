#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/oracle/reading/json.h"

namespace oracle {

// What a case stores about a tensor: all of it, or (large ones) some elements and three sums.
struct ExpectedTensor {
  at::Tensor values;  // the whole tensor, or the elements at `index`
  at::Tensor index;   // undefined when `values` is the whole tensor; else flat positions, int64
  at::Tensor stats;   // undefined, or double (sum, sum of squares, largest magnitude)
};

// One case folder: case.json and tensors.safetensors.
class CaseFile {
 public:
  explicit CaseFile(const std::filesystem::path& folder);

  const std::string& name() const { return name_; }
  const Json& json() const { return json_; }

  bool has_tensor(const std::string& name) const;
  // A copy of a stored tensor, or one made from its entry in `generated`.
  at::Tensor tensor(const std::string& name) const;
  // nullopt when nothing is stored under this name.
  std::optional<ExpectedTensor> expected(const std::string& name, int64_t numel) const;
  // The names of tensors that are stored as results (out., state., rec., callN.) and that nobody asked `expected` for.
  std::vector<std::string> unread_results() const;
  // The largest finite magnitude in the stored tensors whose names begin and end so.
  double largest(const std::string& prefix, const std::string& suffix) const;

 private:
  at::Tensor generate(const std::string& name, const Json& recipe) const;
  const Json* recipe_of(const std::string& name) const;

  std::string name_;
  Json json_;
  std::map<std::string, at::Tensor> tensors_;
  mutable std::set<std::string> read_;
};

// "float16" -> at::kHalf and back. Throws std::runtime_error for an unknown name.
at::ScalarType dtype_from_name(const Json& name);
std::string dtype_name(at::ScalarType dtype);

}  // namespace oracle
