#include "tests/optimizers/support.h"

#include <sstream>

namespace test {

at::Tensor values(at::IntArrayRef sizes, int64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::rand(sizes, generator, at::TensorOptions().dtype(at::kDouble)).mul(2).sub(1).to(dtype);
}

std::vector<at::Tensor> make_params(int64_t seed, at::ScalarType dtype) {
  std::vector<at::Tensor> params;
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{33, 5}, {1}, {130}, {4, 3, 2, 2}}) {
    params.push_back(values(sizes, seed++, dtype).requires_grad_());
  }
  return params;
}

void set_grads(const std::vector<at::Tensor>& params, int64_t seed) {
  for (const at::Tensor& param : params) param.mutable_grad() = values(param.sizes(), seed++, param.scalar_type());
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto bytes = [](const at::Tensor& tensor) { return tensor.detach().contiguous().flatten().view(at::kByte); };
  return bytes(a).equal(bytes(b));
}

bool same_bytes(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bytes(a[i], b[i])) return false;
  }
  return true;
}

std::string saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  return stream.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

}  // namespace test
