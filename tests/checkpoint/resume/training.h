#pragma once
// A training run chosen by names that can be stopped, saved and resumed.
#include <apex_cpp/amp.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace apex::test {

/// Convolution, batch norm, dropout and two linear layers in two parameter groups: buffers, FP32 islands at O2, random numbers.
struct DropNetImpl : torch::nn::Module {
  explicit DropNetImpl(int64_t hidden = 5);
  torch::Tensor forward(torch::Tensor x);
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(DropNet);

/// The images of a step, [4, 1, 6, 6].
inline torch::Tensor input_of(int step) { return (torch::arange(4 * 36, torch::kFloat) + step).reshape({4, 1, 6, 6}).sin(); }

/// Names for `make_optimizer`: every optimizer of torch and of apex_cpp; "…Late" uses fused unscale.
const std::vector<std::string>& optimizer_names();
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const DropNet& net);

/// Whether the optimizer trains at the level: LBFGS takes closures, which masters forbid, and remainders need bfloat16.
bool trains(const std::string& optimizer, const std::string& level);

/// `level`: "O0" to "O6", or "plain": without amp.
class Training {
 public:
  Training(const std::string& optimizer, const std::string& level, uint64_t seed = 3,
           amp::InitializeOptions options = amp::InitializeOptions().verbosity(0));
  virtual ~Training() = default;

  /// Steps `begin` to `end` of the run. Step 1 overflows if the scale is dynamic. Every second step lowers the learning rate in
  /// the options, as schedulers do.
  void run(int begin, int end);
  void backward(int step);
  void save(const std::string& path, const amp::Metadata& metadata = {}) const;
  amp::LoadedCheckpoint load(const std::string& path);
  /// Every byte of parameters, buffers, masters, learning rates, scalers and random numbers. Optimizer states show in the steps
  /// after, and in checkpoints.
  std::string bytes();

  DropNet model{nullptr};
  amp::Model<DropNet> net{nullptr};  // empty if plain
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<double> losses;

 private:
  amp::detail::Session& session() const;
  torch::Tensor loss_of(int step);
  void step(int i);
  std::string optimizer_name_;
  bool plain_;
};

/// An empty folder of this process, removed at its end.
class Folder {
 public:
  Folder();
  ~Folder();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

}  // namespace apex::test
