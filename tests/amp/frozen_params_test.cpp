// Layers that are frozen in one run and trained in another: what torch::save wrote of an optimizer goes to its own parameters.
#include <apex_cpp/optimizers.h>

#include "tests/amp/saved.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

struct TwinsImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return b(torch::tanh(a(x))); }
  void train_only(const torch::nn::Linear& layer) {
    for (const auto& each : {a, b}) {
      for (Tensor& param : each->parameters()) param.set_requires_grad(each.ptr() == layer.ptr());
    }
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(6, 6)), b = register_module("b", torch::nn::Linear(6, 6));
};
TORCH_MODULE(Twins);

class FrozenParams : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  template <class Net, class Opt>
  static void step(Net& net, Opt& opt) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(features()).square().mean(), opt).backward(); }
    opt.step();
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, FrozenParams, ::testing::Values("O0", "O2", "O5"),
                         [](const auto& test) { return test.param; });

TEST_P(FrozenParams, MastersOfAFileGoToTheirOwnParameters) {
  std::string model_file, optimizer_file;
  {
    Twins model;
    model->train_only(model->a);
    optimizers::FusedAdam optimizer(model->parameters(), 0.01);
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
    step(net, opt);
    model_file = saved(net), optimizer_file = saved(opt);
  }
  amp::reset();
  Twins model;
  model->train_only(model->b);
  optimizers::FusedAdam optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  restore(net, model_file);
  restore(opt, optimizer_file);
  const Tensor before = amp::master_params(opt)[2].detach().clone();
  step(net, opt);
  const Tensor moved = (amp::master_params(opt)[2] - before).abs().max();
  EXPECT_GT(moved.item<float>(), 0);
  EXPECT_LE(moved.item<float>(), 0.0101) << "Adam moves by the learning rate at most, in its first step";
}

// The file has masters for `a` alone, since no pass has run with `b`.
TEST_P(FrozenParams, AFileFromBetweenUnfreezingAndAPassIsRead) {
  Twins model;
  model->train_only(model->a);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  step(net, opt);
  for (Tensor& param : model->parameters()) param.set_requires_grad(true);
  const auto model_file = saved(net), optimizer_file = saved(opt);
  step(net, opt);
  const auto after = bytes_of(opt);
  restore(net, model_file);
  restore(opt, optimizer_file);
  step(net, opt);
  EXPECT_EQ(bytes_of(opt), after);
}

// exp_avg_sq is often too small for 16 bits; as 0 it would make of the first step one of the learning rate over eps.
TEST_P(FrozenParams, MomentsThatTheyHaveStayFloat32) {
  Twins model;
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  model->forward(features()).square().mean().backward();
  for (Tensor& param : model->parameters()) param.mutable_grad() *= 1e-6;
  optimizer.step();
  const auto squares_of = [](torch::optim::Optimizer& of, const Tensor& param) {
    return static_cast<torch::optim::AdamParamState&>(*of.state().at(param.unsafeGetTensorImpl())).exp_avg_sq();
  };
  const Tensor before = squares_of(optimizer, model->a->weight);
  model->train_only(model->b);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  step(net, opt);
  const auto optimizer_file = saved(opt);
  restore(opt, optimizer_file);
  for (Tensor& param : model->parameters()) param.set_requires_grad(true);
  opt.zero_grad();
  { amp::scale_loss(model->b(features()).square().mean(), opt).backward(); }
  EXPECT_TRUE(squares_of(opt, amp::master_params(opt)[0]).equal(before));
}

}  // namespace
}  // namespace apex::test
