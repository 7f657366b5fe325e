#pragma once
// Converts the non-tensor values of a checkpoint to JSON and back. Every value is stored with its type.
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>

#include <apex_cpp/amp/checkpoint/archive.h>

namespace apex::amp::detail {

/// Adds a tensor to the file and returns its name there; `path` is the tensor's place in the archive.
using PutTensor = std::function<std::string(const std::string& path, const at::Tensor& tensor)>;
/// Returns the file's tensor `name`.
using GetTensor = std::function<at::Tensor(const std::string& name)>;

nlohmann::json to_json(const ArchiveTree& tree, const std::string& path, const PutTensor& put);
/// Errors: c10::Error or an error of nlohmann::json for JSON that `to_json` does not write.
ArchiveTree tree_from_json(const nlohmann::json& json, const GetTensor& get);

nlohmann::json to_json(const MetadataValue& value);
MetadataValue metadata_from_json(const nlohmann::json& json);

/// Exact: numbers that JSON cannot represent become strings.
nlohmann::json number_to_json(double number);
double number_from_json(const nlohmann::json& json);
int64_t integer_from_json(const nlohmann::json& json);

}  // namespace apex::amp::detail
