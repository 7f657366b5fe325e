// At O6 the doctor names the layers that FP8 breaks and bfloat16 does not.
#include <apex_cpp/amp.h>
#include <apex_cpp/amp/doctor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace apex::test {
namespace {

using torch::Tensor;

constexpr int64_t kFeatures = 32;
constexpr double kUneven = 1e6;

enum class UnevenKind { layers, convolutions, root_weights };

/// Linear layers, of which one may multiply activations of 1 and of 1e6 by weights of 1 and 1e-6: bfloat16 keeps the small
/// ones, and in FP8 with a scale for each tensor they are 0. With root_weights the weights and biases are the model's own.
struct UnevenImpl : torch::nn::Module {
  UnevenImpl(std::string uneven_layer, UnevenKind of_kind) : uneven(std::move(uneven_layer)), kind(of_kind) {
    for (const char* name : {"first", "second", "third", "fourth", "last"}) {
      layers.push_back(torch::nn::Linear(kFeatures, kFeatures));
      names.emplace_back(name);
      if (kind == UnevenKind::root_weights) {
        register_parameter(name, layers.back()->weight);
        register_parameter(names.back() + "_bias", layers.back()->bias);
      } else {
        register_module(name, layers.back());
      }
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (names[i] == uneven) layers[i]->weight.select(1, 0).div_(kUneven);
    }
  }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i) {
      if (names[i] == uneven) x = torch::cat({x.slice(1, 0, 1) * kUneven, x.slice(1, 1)}, 1);
      x = product(x, layers[i]);
      if (i + 1 < layers.size()) x = x.tanh();
    }
    return x;
  }
  Tensor product(const Tensor& x, torch::nn::Linear& layer) const {
    if (kind == UnevenKind::layers) return layer->forward(x);
    if (kind == UnevenKind::root_weights) return torch::addmm(layer->bias, x, layer->weight.t());
    return torch::conv1d(x.unsqueeze(2), layer->weight.unsqueeze(2), layer->bias).squeeze(2);
  }
  std::string uneven;
  UnevenKind kind;
  std::vector<torch::nn::Linear> layers;
  std::vector<std::string> names;
};
TORCH_MODULE(Uneven);

amp::Doctor doctor_for(const std::string& uneven, const amp::OptLevel& level, UnevenKind kind = UnevenKind::layers) {
  const auto program = [uneven, kind](const amp::OptLevel& at, amp::DoctorRun& run) {
    Uneven model(uneven, kind);
    const Tensor x = torch::randn({64, kFeatures}), y = torch::sin(x * 2);
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
    auto [net, opt] = amp::initialize(model, optimizer, at);
    while (run.next()) {
      opt.zero_grad();
      const Tensor loss = torch::mse_loss(net->forward(x).to(torch::kFloat), y);
      { amp::scale_loss(loss, opt).backward(); }
      opt.step();
      run.loss(loss);
    }
  };
  return {level, program, amp::DoctorOptions().steps(30)};
}

TEST(Float8Doctor, FindsNothingWhereFp8Trains) {
  auto doctor = doctor_for("", "O6");
  EXPECT_FALSE(doctor.first_divergence()) << doctor.first_divergence();
  EXPECT_EQ(doctor.minimal_float32().to_yaml(), amp::OptLevel("O6").to_yaml());
}

TEST(Float8Doctor, NamesTheLayerThatFp8Breaks) {
  for (const std::string layer : {"second", "fourth"}) {
    auto doctor = doctor_for(layer, "O6");
    EXPECT_EQ(doctor.first_divergence().place(), "forward " + layer + " aten::addmm");
    const auto kept = doctor.minimal_float32().overrides();
    std::vector<std::string> wanted{"first", "last", layer};
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(kept.bfloat16_modules(), wanted);
    EXPECT_FALSE(kept.float32_modules().has_value());
  }
}

TEST(Float8Doctor, NamesTheConvolutionThatFp8Breaks) {
  const auto level = amp::OptLevel("O6").with(amp::InitializeOptions().fp8_convolutions(true));
  auto doctor = doctor_for("third", level, UnevenKind::convolutions);
  EXPECT_EQ(doctor.first_divergence().place(), "forward third aten::conv1d");
  EXPECT_EQ(doctor.minimal_float32().overrides().bfloat16_modules(), (std::vector<std::string>{"first", "last", "third"}));
}

TEST(Float8Doctor, NamesTheModelsOwnWeightThatFp8Breaks) {
  auto doctor = doctor_for("second", "O6", UnevenKind::root_weights);
  const auto kept = doctor.minimal_float32().overrides();
  EXPECT_EQ(kept.bfloat16_modules(), (std::vector<std::string>{"first", "last", "second"}));
  EXPECT_FALSE(kept.fp8().has_value()) << "the level keeps its FP8";
}

TEST(Float8Doctor, KeepsWhatTheProgramKeeps) {
  auto doctor = doctor_for("second", amp::OptLevel("O6").with(amp::InitializeOptions().bfloat16_modules({"second"})));
  EXPECT_FALSE(doctor.first_divergence()) << doctor.first_divergence();
}

}  // namespace
}  // namespace apex::test
