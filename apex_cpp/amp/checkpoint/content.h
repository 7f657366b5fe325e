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

/// What a checkpoint holds, apart from any model or optimizer. Tensors to be saved are on any device and may be the model's
/// own, those that were read are on the CPU.

/// A parameter or buffer: 16-bit ones are widened to float32, `dtype` says what they were in the model.
struct ModelTensor {
  std::string name, dtype;
  at::Tensor value;
};

/// A parameter of an optimizer. One of a model is named after it ("model0/fc.weight") and may have an FP32 master; one that is
/// in none of the models has no name and its `value` here, in float32.
struct OptimizerParam {
  std::string name, dtype;
  std::vector<int64_t> sizes;
  at::Tensor master, value;
};

struct OptimizerContent {
  std::string class_name;
  std::vector<std::vector<int64_t>> groups;  // positions in `params`
  std::vector<OptimizerParam> params;
  ArchiveTree archive;  // state and options, parameters named by position
};

struct ScalerContent {
  double loss_scale = 1.0;
  int64_t unskipped = 0;
  bool dynamic = false;
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
  std::vector<std::vector<ModelTensor>> models;
  std::vector<OptimizerContent> optimizers;
  std::vector<GeneratorContent> generators;
  Metadata metadata;
};

/// The file's form of `content`, and back. The same content always gives the same form. `content_of` needs no model and changes
/// nothing; errors: c10::Error that says what is wrong with the file's content.
TensorFile file_of(const CheckpointContent& content);
bool is_checkpoint(const TensorFile& file);
CheckpointContent content_of(const TensorFile& file);

/// A model's parameters and buffers by their full names, each widened to float32 where it has 16 bits.
std::vector<ModelTensor> content_of(const torch::nn::Module& module);

/// Checks that `content` has exactly the tensors of `module`, of their shapes; floating dtypes may differ. Errors: c10::Error
/// that names all tensors that do not fit.
void check_fits(const torch::nn::Module& module, const std::vector<ModelTensor>& content, const std::string& model_name);

/// "model0/fc.weight"
std::string full_name(size_t model, const std::string& name);

}  // namespace apex::amp::detail
