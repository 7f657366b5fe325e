// Defects of Apex's multi-tensor kernels and fused optimizers.
#include <apex_cpp/optimizers.h>
#include <sys/mman.h>

#include "kernels/multi_tensor.h"
#include "tests/known_bugs/known_bugs.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

using namespace apex::optimizers;
using torch::Tensor;

// Kernels ran on the current device instead of the parameters' device.
TEST_F(KnownBugs, Bug20ParametersOnAGpuThatIsNotTheCurrentOneTrain) {
  APEX_CPP_NEEDS_GPUS(2);
  Mlp model;
  const torch::Device last(torch::kCUDA, static_cast<c10::DeviceIndex>(torch::cuda::device_count() - 1));
  model->to(last);
  FusedAdam optimizer(model->parameters(), FusedAdamOptions(0.1));
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const auto before = bytes_of(model->fc1->weight.cpu());
  { amp::scale_loss(net->forward(features().to(last)).square().mean(), opt).backward(); }
  opt.step();
  EXPECT_NE(bytes_of(model->fc1->weight.cpu()), before);
  EXPECT_EQ(amp::master_params(opt)[0].device(), last);
}

// More than 2^31 elements: indices of 32 bits would wrap. Pages that are only read need no memory.
TEST_F(KnownBugs, Bug21OneTensorMayHaveMoreThan2To31Elements) {
  const int64_t numel = (int64_t{1} << 31) + 64;
  const size_t bytes = static_cast<size_t>(numel) * sizeof(c10::Half);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  {
    const Tensor huge = torch::from_blob(memory, {numel}, torch::kHalf);
    static_cast<c10::Half*>(memory)[numel - 1] = 3.0f;
    const Tensor flag = torch::zeros({1}, torch::kInt);
    const Tensor norm = std::get<0>(kernels::multi_tensor_l2norm(flag, {huge}, /*per_tensor=*/false));
    EXPECT_EQ(norm.item<float>(), 3.0f);
  }
  munmap(memory, bytes);
}

// An empty tensor made the harness skip others, or write out of bounds.
TEST_F(KnownBugs, Bug22EmptyTensorsAmongOthersChangeNothing) {
  for (const size_t empty : {0, 1, 2}) {
    std::vector<Tensor> params, alone;
    for (size_t i = 0; i < 3; ++i) {
      const bool is_empty = i == empty;
      params.push_back(torch::ones({is_empty ? 0 : 5}).requires_grad_());
      params[i].mutable_grad() = torch::full_like(params[i], 0.5 + static_cast<double>(i));
      if (is_empty) continue;
      alone.push_back(torch::ones({5}).requires_grad_());
      alone.back().mutable_grad() = params[i].grad().clone();
    }
    FusedAdam with(params, FusedAdamOptions(0.1)), without(alone, FusedAdamOptions(0.1));
    with.step();
    without.step();
    params.erase(params.begin() + static_cast<int64_t>(empty));
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(params[i], alone[i])) << empty;
  }
}

// FusedSGD passed over other dtypes in silence.
TEST_F(KnownBugs, Bug35Fopt04FusedSgdRefusesADtypeItDoesNotUpdate) {
  const Tensor param = torch::ones({3}, torch::kDouble).requires_grad_();
  FusedSGD optimizer({param}, FusedSGDOptions(0.1));
  param.mutable_grad() = torch::ones_like(param);
  EXPECT_TRUE(contains(message_of([&] { optimizer.step(); }), "Double"));
  EXPECT_TRUE(torch::equal(param, torch::ones({3}, torch::kDouble)));
}

// The last parameter decided for all whether momentum starts.
TEST_F(KnownBugs, Bug35Fopt09FusedSgdsMomentumStartsPerParameter) {
  const auto options = FusedSGDOptions(0.5).momentum(0.5).dampening(0.5);
  const Tensor early = torch::zeros({2}).requires_grad_(), late = torch::zeros({2}).requires_grad_();
  FusedSGD optimizer({early, late}, options);
  early.mutable_grad() = torch::ones({2});
  optimizer.step();  // momentum 1
  early.mutable_grad() = torch::ones({2});
  late.mutable_grad() = torch::ones({2});
  optimizer.step();  // early: 0.5 * 1 + 0.5 * 1 = 1; late starts with 1, without dampening
  EXPECT_TRUE(torch::equal(early, torch::full({2}, -1.0)));
  EXPECT_TRUE(torch::equal(late, torch::full({2}, -0.5)));
}

}  // namespace
}  // namespace apex::test
