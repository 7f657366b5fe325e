#include "tests/oracle/reading/case_file.h"

#include <ATen/Functions.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>

#include <algorithm>
#include <stdexcept>

namespace oracle {
namespace {

using TensorMap = std::map<std::string, at::Tensor>;

const std::map<std::string, at::ScalarType>& dtype_names() {
  static const std::map<std::string, at::ScalarType> kNames = {
      {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}, {"float32", at::kFloat}, {"float64", at::kDouble},
      {"int64", at::kLong},   {"int32", at::kInt},         {"int16", at::kShort},   {"int8", at::kChar},
      {"uint8", at::kByte},   {"bool", at::kBool}};
  return kNames;
}

bool is_result(const std::string& name) {
  const auto begins = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
  return begins("out.") || begins("state.") || begins("rec.") || begins("call");
}

// The hash that stands in the place of a random generator: 32-bit unsigned arithmetic, 11 bits of the result.
float generated_value(uint32_t i, uint32_t seed, double scale) {
  uint32_t h = i * 2654435761u + seed * 40503u + 12345u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return static_cast<float>((static_cast<double>((h >> 8) & 2047u) - 1024.0) / 1024.0 * scale);
}

TensorMap read_tensors(const std::filesystem::path& path) {
  const auto stored = apex::amp::detail::read_safetensors(path.string()).tensors;
  return {stored.begin(), stored.end()};
}

}  // namespace

at::ScalarType dtype_from_name(const Json& name) {
  auto found = dtype_names().find(name.as_string());
  if (found == dtype_names().end()) throw std::runtime_error(name.where() + ": unknown dtype '" + name.as_string() + "'");
  return found->second;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : dtype_names()) {
    if (type == dtype) return name;
  }
  return c10::toString(dtype);
}

CaseFile::CaseFile(const std::filesystem::path& folder)
    : name_(folder.filename().string()),
      json_(Json::parse_file(folder / "case.json")),
      tensors_(read_tensors(folder / "tensors.safetensors")) {
  const int64_t version = json_.at("format_version").as_int();
  if (version != 1) throw std::runtime_error(json_.where() + ": format_version " + std::to_string(version) + " is not known");
}

const Json* CaseFile::recipe_of(const std::string& name) const {
  const Json* generated = json_.find("generated");
  return generated ? generated->find(name) : nullptr;
}

bool CaseFile::has_tensor(const std::string& name) const { return tensors_.count(name) > 0 || recipe_of(name) != nullptr; }

at::Tensor CaseFile::tensor(const std::string& name) const {
  if (auto found = tensors_.find(name); found != tensors_.end()) return found->second.clone();
  if (const Json* recipe = recipe_of(name)) return generate(name, *recipe);
  throw std::runtime_error(json_.where() + ": no tensor '" + name + "' in tensors.safetensors or in generated");
}

at::Tensor CaseFile::generate(const std::string& name, const Json& recipe) const {
  const std::vector<int64_t> shape = recipe.at("shape").as_ints();
  at::Tensor values = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  const auto seed = static_cast<uint32_t>(recipe.at("seed").as_int());
  const double scale = recipe.at("scale").as_double();
  float* out = values.data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) out[i] = generated_value(static_cast<uint32_t>(i), seed, scale);
  values = values.to(dtype_from_name(recipe.at("dtype")));
  if (auto check = tensors_.find("gencheck." + name); check != tensors_.end()) {
    const at::Tensor head = values.flatten().slice(0, 0, check->second.numel());
    if (!head.to(at::kDouble).equal(check->second.flatten().to(at::kDouble))) {
      throw std::runtime_error(recipe.where() + ": generated values of '" + name + "' differ from gencheck." + name);
    }
  }
  return values;
}

double CaseFile::largest(const std::string& prefix, const std::string& suffix) const {
  double found = 0;
  for (const auto& [name, tensor] : tensors_) {
    const std::string whole = name.substr(0, name.find("@sample"));
    const bool matches = whole.size() >= prefix.size() + suffix.size() && whole.rfind(prefix, 0) == 0 &&
                         whole.compare(whole.size() - suffix.size(), suffix.size(), suffix) == 0;
    if (!matches || tensor.numel() == 0) continue;
    const at::Tensor magnitude = tensor.to(at::kDouble).abs();
    found = std::max(found, at::where(magnitude.isfinite(), magnitude, at::zeros_like(magnitude)).max().item<double>());
  }
  return found;
}

std::vector<std::string> CaseFile::unread_results() const {
  std::set<std::string> unread;
  for (const auto& [name, tensor] : tensors_) {
    const std::string whole = name.substr(0, name.find('@'));
    if (is_result(whole) && !read_.count(whole)) unread.insert(whole);
  }
  return {unread.begin(), unread.end()};
}

std::optional<ExpectedTensor> CaseFile::expected(const std::string& name, int64_t numel) const {
  read_.insert(name);
  if (auto whole = tensors_.find(name); whole != tensors_.end()) return ExpectedTensor{whole->second, {}, {}};
  auto sample = tensors_.find(name + "@sample");
  if (sample == tensors_.end()) return std::nullopt;
  auto index = tensors_.find("sample_idx." + std::to_string(numel));
  if (index == tensors_.end()) {
    throw std::runtime_error(json_.where() + ": '" + name + "' was sampled, but not at " + std::to_string(numel) + " elements");
  }
  auto stats = tensors_.find(name + "@stats");
  return ExpectedTensor{sample->second, index->second, stats == tensors_.end() ? at::Tensor() : stats->second};
}

}  // namespace oracle
