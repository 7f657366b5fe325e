// A user's program: one step at O2 must leave 16-bit weights that changed, and return a finite float32 output. A NaN loss must
// be detected even if the user's flags promise that there are no NaNs.
#include <apex_cpp/amp.h>
#include <apex_cpp/amp/level_fallback.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstdio>

bool sees_nan() {
  apex::amp::DivergenceDetector detector;
  return detector.update(1, torch::tensor(-1.0).log().item<double>(), {});
}

int main() {
  torch::manual_seed(0);
  torch::nn::Linear model(4, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = apex::amp::initialize(model, optimizer, "O2");
  const auto before = net->weight.detach().clone();

  const auto loss = torch::mse_loss(net->forward(torch::ones({3, 4})), torch::zeros({3, 2}));
  {
    auto scaled_loss = apex::amp::scale_loss(loss, opt);
    scaled_loss.backward();
  }
  opt.step();

  const bool half = net->weight.scalar_type() == torch::kHalf;
  const bool moved = !before.equal(net->weight);
  const bool finite = loss.scalar_type() == torch::kFloat && std::isfinite(loss.item<float>());
  const bool nan_seen = sees_nan();
  std::printf("half weights: %d, moved: %d, finite float32 loss: %d, NaN seen: %d\n", half, moved, finite, nan_seen);
  return half && moved && finite && nan_seen ? 0 : 1;
}
