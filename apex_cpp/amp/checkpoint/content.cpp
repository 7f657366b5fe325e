#include <apex_cpp/amp/checkpoint/content.h>

#include <apex_cpp/amp/checkpoint/value_json.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <sstream>

// A checkpoint file has everything except tensors as one JSON text in its metadata; the JSON refers to tensors by name.
namespace apex::amp::detail {
namespace {

using nlohmann::json;

constexpr const char* kCheckpointFormat = "apex_cpp.checkpoint";
constexpr int64_t kVersion = 1;

// ---- to the file ----

/// Writes tensors under names derived from their place in the checkpoint.
class TensorWriter {
 public:
  explicit TensorWriter(TensorFile& file) : file_(file) {}
  json put(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return nullptr;
    file_.tensors.emplace_back(name, tensor.detach());
    return name;
  }

 private:
  TensorFile& file_;
};

json model_to_json(const std::vector<ModelTensor>& model, const std::string& name, TensorWriter& writer) {
  json tensors = json::array();
  for (const auto& tensor : model) {
    writer.put(name + "/" + tensor.name, tensor.value);
    tensors.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}});
  }
  return tensors;
}

json param_to_json(const OptimizerParam& param, const std::string& optimizer, const std::string& position,
                   TensorWriter& writer) {
  return {{"name", param.name},
          {"dtype", param.dtype},
          {"shape", param.sizes},
          {"master", writer.put(optimizer + "/master/" + position, param.master)},
          {"value", writer.put(optimizer + "/value/" + position, param.value)}};
}

json optimizer_to_json(const OptimizerContent& optimizer, const std::string& name, TensorWriter& writer) {
  json params = json::array();
  for (size_t i = 0; i < optimizer.params.size(); ++i) {
    params.push_back(param_to_json(optimizer.params[i], name, std::to_string(i), writer));
  }
  const auto put = [&](const std::string& path, const at::Tensor& tensor) {
    writer.put(path, tensor);
    return path;
  };
  return {{"class", optimizer.class_name},
          {"groups", optimizer.groups},
          {"params", std::move(params)},
          {"archive", to_json(optimizer.archive, name, put)}};
}

json amp_to_json(const CheckpointContent& content, TensorWriter& writer) {
  json properties = json::object(), scalers = json::array();
  for (const auto& [name, value] : content.properties) properties[name] = value;
  for (const auto& scaler : content.scalers) {
    scalers.push_back(
        {{"loss_scale", number_to_json(scaler.loss_scale)}, {"unskipped", scaler.unskipped}, {"dynamic", scaler.dynamic}});
  }
  json amp = {{"opt_level", content.opt_level}, {"properties", std::move(properties)}, {"loss_scalers", std::move(scalers)}};
  if (content.float8.history.defined()) {
    amp["float8"] = {{"parameters", content.float8.parameters},
                     {"history", writer.put("amp/float8_history", content.float8.history)}};
  }
  return amp;
}

// ---- from the file ----

/// Looks up the file's tensors by name.
class TensorReader {
 public:
  explicit TensorReader(const TensorFile& file) {
    for (const auto& [name, tensor] : file.tensors) tensors_[name] = tensor;
  }
  at::Tensor get(const std::string& name) const {
    const auto found = tensors_.find(name);
    TORCH_CHECK(found != tensors_.end(), "the tensor '", name, "' is missing.");
    return found->second;
  }
  at::Tensor get_or_none(const json& name) const { return name.is_null() ? at::Tensor() : get(name.get<std::string>()); }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

std::vector<ModelTensor> model_from_json(const json& object, const std::string& name, const TensorReader& reader) {
  std::vector<ModelTensor> tensors;
  for (const auto& tensor : object) {
    const auto key = tensor.at("name").get<std::string>();
    tensors.push_back({key, tensor.at("dtype").get<std::string>(), reader.get(name + "/" + key)});
  }
  return tensors;
}

OptimizerParam param_from_json(const json& object, const TensorReader& reader) {
  OptimizerParam param{object.at("name").get<std::string>(),
                       object.at("dtype").get<std::string>(),
                       {},
                       reader.get_or_none(object.at("master")),
                       reader.get_or_none(object.at("value"))};
  for (const auto& size : object.at("shape")) param.sizes.push_back(integer_from_json(size));
  for (const auto* tensor : {&param.master, &param.value}) {
    TORCH_CHECK(!tensor->defined() || (tensor->sizes() == param.sizes && tensor->scalar_type() == at::kFloat),
                "the float32 value of the parameter '", param.name, "' has dtype ", tensor->scalar_type(), " and shape ",
                tensor->sizes(), ", expected ", at::IntArrayRef(param.sizes), ".");
  }
  return param;
}

OptimizerContent optimizer_from_json(const json& object, const TensorReader& reader) {
  OptimizerContent optimizer;
  optimizer.class_name = object.at("class").get<std::string>();
  for (const auto& param : object.at("params")) optimizer.params.push_back(param_from_json(param, reader));
  for (const auto& group : object.at("groups")) {
    optimizer.groups.emplace_back();
    for (const auto& position : group) {
      optimizer.groups.back().push_back(integer_from_json(position));
      TORCH_CHECK(position >= 0 && position < optimizer.params.size(),
                  "a parameter group lists a parameter that the file does not have.");
    }
  }
  optimizer.archive = tree_from_json(object.at("archive"), [&](const auto& name) { return reader.get(name); });
  return optimizer;
}

void read_amp(const json& object, const TensorReader& reader, CheckpointContent& content) {
  content.opt_level = object.at("opt_level").get<std::string>();
  for (const auto& item : object.at("properties").items()) {
    content.properties.emplace_back(item.key(), item.value().get<std::string>());
  }
  for (const auto& scaler : object.at("loss_scalers")) {
    content.scalers.push_back({number_from_json(scaler.at("loss_scale")), integer_from_json(scaler.at("unskipped")),
                               scaler.at("dynamic").get<bool>()});
  }
  const auto float8 = object.find("float8");
  if (float8 == object.end()) return;
  content.float8.parameters = float8->at("parameters").get<std::vector<std::string>>();
  content.float8.history = reader.get(float8->at("history").get<std::string>());
}

CheckpointContent parse(const json& object, const TensorReader& reader) {
  CheckpointContent content;
  read_amp(object.at("amp"), reader, content);
  for (const auto& model : object.at("models")) {
    content.models.push_back(model_from_json(model, "model" + std::to_string(content.models.size()), reader));
  }
  for (const auto& optimizer : object.at("optimizers")) content.optimizers.push_back(optimizer_from_json(optimizer, reader));
  for (const auto& device : object.at("generators")) {
    const auto name = device.get<std::string>();
    content.generators.push_back({name, reader.get("generator/" + name)});
  }
  for (const auto& item : object.at("metadata").items()) {
    content.metadata.emplace(item.key(), metadata_from_json(item.value())).first->second.set_key(item.key());
  }
  return content;
}

const std::string& entry(const TensorFile& file, const char* key) {
  const auto found = file.metadata.find(key);
  TORCH_CHECK(found != file.metadata.end(), "it has no '", key, "'.");
  return found->second;
}

void check_format(const TensorFile& file) {
  TORCH_CHECK(is_checkpoint(file), "it is a safetensors file, but not a checkpoint of amp::save_checkpoint.");
  const auto& version = entry(file, "version");
  TORCH_CHECK(version == std::to_string(kVersion), "it has the checkpoint format ", version.substr(0, 20),
              ", written by apex_cpp ", entry(file, "library").substr(0, 20), "; this version reads format ", kVersion,
              ". Use a newer apex_cpp.");
}

}  // namespace

bool is_checkpoint(const TensorFile& file) {
  const auto format = file.metadata.find("format");
  return format != file.metadata.end() && format->second == kCheckpointFormat;
}

TensorFile file_of(const CheckpointContent& content) {
  TensorFile file;
  TensorWriter writer(file);
  json models = json::array(), optimizers = json::array(), generators = json::array(), metadata = json::object();
  for (const auto& model : content.models) {
    models.push_back(model_to_json(model, "model" + std::to_string(models.size()), writer));
  }
  for (const auto& optimizer : content.optimizers) {
    optimizers.push_back(optimizer_to_json(optimizer, "optimizer" + std::to_string(optimizers.size()), writer));
  }
  for (const auto& generator : content.generators) {
    writer.put("generator/" + generator.device, generator.state);
    generators.push_back(generator.device);
  }
  for (const auto& [name, value] : content.metadata) metadata[name] = to_json(value);
  const json all = {{"amp", amp_to_json(content, writer)},
                    {"models", std::move(models)},
                    {"optimizers", std::move(optimizers)},
                    {"generators", std::move(generators)},
                    {"metadata", std::move(metadata)}};
  file.metadata["format"] = kCheckpointFormat;
  file.metadata["version"] = std::to_string(kVersion);
  file.metadata["library"] = content.library_version;
  try {
    file.metadata["checkpoint"] = all.dump();
  } catch (const json::exception&) {
    C10_THROW_ERROR(ValueError, "amp::save_checkpoint: a name or a text of the metadata is not UTF-8.");
  }
  return file;
}

CheckpointContent content_of(const TensorFile& file) {
  check_format(file);
  try {
    auto content = parse(json::parse(entry(file, "checkpoint")), TensorReader(file));
    content.library_version = entry(file, "library");
    return content;
  } catch (const json::exception& error) {
    C10_THROW_ERROR(Error, std::string("its description does not fit the format: ") + error.what());
  }
}

namespace {

/// A list of names for a message, cut to a readable length.
class NameList {
 public:
  void add(const std::string& text) {
    if (++count_ <= kShown) text_ << (count_ > 1 ? ", " : "") << text;
  }
  /// "title: a, b. "; empty without names.
  std::string sentence(const std::string& title) const {
    if (count_ == 0) return "";
    const auto more = count_ > kShown ? " and " + std::to_string(count_ - kShown) + " more" : "";
    return title + ": " + text_.str() + more + ". ";
  }

 private:
  static constexpr size_t kShown = 40;
  std::ostringstream text_;
  size_t count_ = 0;
};

// LibTorch has no conversion of pairs of 4 bits.
bool convertible(c10::ScalarType from, c10::ScalarType to) {
  const auto converts = [](c10::ScalarType type) {
    return c10::isFloatingType(type) && type != c10::ScalarType::Float4_e2m1fn_x2;
  };
  return from == to || (converts(from) && converts(to));
}

std::string mismatch(const std::string& name, const at::Tensor& here, const at::Tensor& there) {
  std::ostringstream text;
  text << "'" << name << "' is " << there.scalar_type() << there.sizes() << " in the file and " << here.scalar_type()
       << here.sizes() << " here";
  return text.str();
}

}  // namespace

std::vector<ModelTensor> content_of(const torch::nn::Module& module) {
  std::vector<ModelTensor> content;
  for (const auto& [name, tensor] : tensors_of(module)) {
    content.push_back({name, c10::toString(tensor.scalar_type()), widened(tensor).detach()});
  }
  return content;
}

void check_fits(const torch::nn::Module& module, const std::vector<ModelTensor>& content, const std::string& model_name) {
  std::map<std::string, at::Tensor> saved;
  for (const auto& tensor : content) saved.emplace(tensor.name, tensor.value);
  NameList missing, unexpected, different;
  for (const auto& [name, tensor] : tensors_of(module)) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      missing.add("'" + name + "'");
      continue;
    }
    const at::Tensor& value = found->second;
    const bool fits = value.sizes() == tensor.sizes() && convertible(value.scalar_type(), tensor.scalar_type());
    if (!fits) different.add(mismatch(name, tensor, value));
    saved.erase(found);
  }
  for (const auto& [name, value] : saved) unexpected.add("'" + name + "'");
  const auto problems = missing.sentence("Missing in the file") + unexpected.sentence("Only in the file") +
                        different.sentence("Of a different shape or dtype");
  TORCH_CHECK(problems.empty(), "it was saved from a different model than ", model_name, ". ", problems,
              "Load it into a model that is built like the saved one.");
}

std::string full_name(size_t model, const std::string& name) { return "model" + std::to_string(model) + "/" + name; }

}  // namespace apex::amp::detail
