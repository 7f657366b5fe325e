#include <apex_cpp/amp/checkpoint/model_content.h>
#include <apex_cpp/amp/tensors/model_tensors.h>

#include <c10/core/ScalarType.h>

#include <sstream>

namespace apex::amp::detail {
namespace {

/// A list for a message, of as many as a reader can use.
class NameList {
 public:
  void add(const std::string& text) {
    if (++count_ <= kShown) text_ << (count_ > 1 ? ", " : "") << text;
  }
  /// "title: a, b. ", or nothing without names.
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

bool convertible(c10::ScalarType from, c10::ScalarType to) {
  return from == to || (c10::isFloatingType(from) && c10::isFloatingType(to));
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
                        different.sentence("Of another shape or type");
  TORCH_CHECK(problems.empty(), "it was saved from another model than ", model_name, ". ", problems,
              "Load it into a model that is built as the one it was saved from.");
}

std::string full_name(size_t model, const std::string& name) { return "model" + std::to_string(model) + "/" + name; }

}  // namespace apex::amp::detail
