#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/checkpoint/archive.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// The contents of a checkpoint, independent of models and optimizers. Tensors to save are on any device and may be the model's
/// own. Tensors from a file are on the CPU.

/// A parameter or buffer. `value` is float32 for a 16-bit tensor; `dtype` is the dtype in the model.
struct ModelTensor {
  std::string name, dtype;
  at::Tensor value;
};

/// A parameter of an optimizer. A parameter of a model has the model's name for it ("model0/fc.weight") and may have an FP32
/// master. A parameter of no model has an empty name, and its float32 value in `value`.
struct OptimizerParam {
  std::string name, dtype;
  std::vector<int64_t> sizes;
  at::Tensor master, value;
};

struct OptimizerContent {
  std::string class_name;
  std::vector<std::vector<int64_t>> groups;  // positions in `params`
  std::vector<OptimizerParam> params;
  ArchiveTree archive;  // state and options; parameters are named by position
};

struct ScalerContent {
  double loss_scale = 1.0;
  int64_t unskipped = 0;
  bool dynamic = false;
};

/// The history of the FP8 scales, with the names of the weights in its order. Undefined without `fp8: delayed`.
struct Float8Content {
  std::vector<std::string> parameters;
  at::Tensor history;
};

struct GeneratorContent {
  std::string device;  // "cpu", "cuda:0", …
  at::Tensor state;
};

struct CheckpointContent {
  std::string library_version;
  std::string opt_level;  // empty: saved without amp
  std::vector<std::pair<std::string, std::string>> properties;
  std::vector<ScalerContent> scalers;
  Float8Content float8;
  std::vector<std::vector<ModelTensor>> models;
  std::vector<OptimizerContent> optimizers;
  std::vector<GeneratorContent> generators;
  Metadata metadata;
};

/// Converts between `content` and the form in which a file has it. The same content always gives the same form. `content_of`
/// needs no model and changes nothing. Errors: c10::Error with the defect of the file's content.
TensorFile file_of(const CheckpointContent& content);
bool is_checkpoint(const TensorFile& file);
CheckpointContent content_of(const TensorFile& file);

/// A model's parameters and buffers by their full names, with 16-bit tensors widened to float32.
std::vector<ModelTensor> content_of(const torch::nn::Module& module);

/// Checks that `content` has exactly the tensors of `module`, in the same shapes; floating-point dtypes may differ. Errors:
/// c10::Error with the names of all tensors that do not fit.
void check_fits(const torch::nn::Module& module, const std::vector<ModelTensor>& content, const std::string& model_name);

/// "model0/fc.weight"
std::string full_name(size_t model, const std::string& name);

}  // namespace apex::amp::detail
