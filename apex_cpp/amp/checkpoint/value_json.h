#pragma once
// How what is not a tensor stands in a checkpoint's JSON: every value with its type, so that it comes back as it was.
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>

#include <apex_cpp/amp/checkpoint/archive.h>

namespace apex::amp::detail {

/// Puts a tensor into the file and answers the name it has there; `path` is where it stands in the archive.
using PutTensor = std::function<std::string(const std::string& path, const at::Tensor& tensor)>;
/// The file's tensor of that name.
using GetTensor = std::function<at::Tensor(const std::string& name)>;

nlohmann::json to_json(const ArchiveTree& tree, const std::string& path, const PutTensor& put);
/// Errors: c10::Error or nlohmann's for what `to_json` would not have written.
ArchiveTree tree_from_json(const nlohmann::json& json, const GetTensor& get);

nlohmann::json to_json(const MetadataValue& value);
MetadataValue metadata_from_json(const nlohmann::json& json);

/// Exact: numbers that JSON has no form for are texts.
nlohmann::json number_to_json(double number);
double number_from_json(const nlohmann::json& json);
int64_t integer_from_json(const nlohmann::json& json);

}  // namespace apex::amp::detail
