#include "tests/combinations/tied.h"

#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>

#include <algorithm>

namespace apex::test::combinations {
namespace {

constexpr double kTiedEps = 1e-3;  // representable in float16

template <class Opt, class Options>
Kind plain_kind(const std::string& name, const Options& options) {
  return {name, [options](std::vector<Tensor> params) -> OptimizerPtr {
            auto optimizer = std::make_unique<Opt>(params, options);
            if constexpr (std::is_same_v<Opt, optimizers::FusedScheduleFreeAdamW>) optimizer->train();
            return optimizer;
          }};
}

template <class Opt, class Options>
Kind larc_around(const std::string& name, const Options& options) {
  return {name, [options](std::vector<Tensor> params) -> OptimizerPtr {
            return std::make_unique<parallel::LARC<Opt>>(Opt(params, options));
          }};
}

template <class Opt, class Options>
void add_both_orders(std::vector<Kind>& kinds, const std::string& name, Options options) {
  kinds.push_back(plain_kind<Opt>(name, options.materialize_master_grads(true)));
  kinds.push_back(plain_kind<Opt>(name + "InFusedOrder", options.materialize_master_grads(false)));
}

}  // namespace

TiedHeadImpl::TiedHeadImpl(const Tensor& tied) : weight(register_parameter("weight", tied)) {}

Tensor TiedHeadImpl::forward(const Tensor& x) { return torch::linear(x, weight); }

TiedImpl::TiedImpl() {
  fc = register_module("fc", torch::nn::Linear(6, 6));
  bn = register_module("bn", torch::nn::BatchNorm1d(6));
  register_module("fc_again", fc.ptr());
  register_module("bn_again", bn.ptr());
  head = register_module("head", std::make_shared<TiedHeadImpl>(fc->weight));
}

Tensor TiedImpl::forward(const Tensor& x) { return head->forward(torch::relu(fc(torch::relu(bn(fc(x)))))); }

std::vector<Tensor> params_of(const torch::nn::Module& model, Listing listing) {
  const std::vector<Tensor> listed = model.parameters();
  if (listing == Listing::all) return listed;
  std::vector<Tensor> once;
  for (const Tensor& param : listed) {
    const auto is_param = [&](const Tensor& other) { return other.is_same(param); };
    if (std::none_of(once.begin(), once.end(), is_param)) once.push_back(param);
  }
  return once;
}

const std::vector<Kind>& torch_kinds() {
  using namespace torch::optim;
  static const std::vector<Kind> kKinds = {
      plain_kind<SGD>("SGD", SGDOptions(0.1).momentum(0.9).weight_decay(0.01)),
      plain_kind<torch::optim::Adam>("Adam", AdamOptions(0.01).eps(kTiedEps).amsgrad(true)),
      plain_kind<AdamW>("AdamW", AdamWOptions(0.01).eps(kTiedEps)),
      plain_kind<RMSprop>("RMSprop", RMSpropOptions(0.01).eps(kTiedEps).momentum(0.5)),
      plain_kind<Adagrad>("Adagrad", AdagradOptions(0.05).eps(kTiedEps))};
  return kKinds;
}

const std::vector<Kind>& own_kinds() {
  using namespace optimizers;
  static const std::vector<Kind> kKinds = [] {
    const auto sgd = FusedSGDOptions(0.1).momentum(0.9).weight_decay(0.01);
    std::vector<Kind> kinds;
    add_both_orders<FusedSGD>(kinds, "FusedSGD", sgd);
    add_both_orders<FusedAdam>(kinds, "FusedAdam", FusedAdamOptions(0.01).eps(kTiedEps));
    add_both_orders<FusedLAMB>(kinds, "FusedLAMB", FusedLAMBOptions(0.01).eps(kTiedEps).max_grad_norm(0.1));
    add_both_orders<FusedNovoGrad>(kinds, "FusedNovoGrad", FusedNovoGradOptions(0.01).eps(kTiedEps));
    add_both_orders<FusedAdagrad>(kinds, "FusedAdagrad", FusedAdagradOptions(0.05).eps(kTiedEps));
    add_both_orders<FusedLARS>(kinds, "FusedLARS",
                               FusedLARSOptions(0.1).momentum(0.9).weight_decay(0.01).trust_coefficient(0.1));
    add_both_orders<FusedLion>(kinds, "FusedLion", FusedLionOptions(0.01).weight_decay(0.01));
    add_both_orders<FusedScheduleFreeAdamW>(kinds, "FusedScheduleFreeAdamW", FusedScheduleFreeAdamWOptions(0.01).eps(kTiedEps));
    add_both_orders<FusedMixedPrecisionLamb>(kinds, "FusedMixedPrecisionLamb",
                                             FusedMixedPrecisionLambOptions(0.01).eps(kTiedEps).max_grad_norm(0.1));
    kinds.push_back(larc_around<torch::optim::SGD>("LarcSGD", torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01)));
    kinds.push_back(larc_around<FusedSGD>("LarcFusedSGD", sgd));
    return kinds;
  }();
  return kKinds;
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds = torch_kinds();
  kinds.insert(kinds.end(), own_kinds().begin(), own_kinds().end());
  return kinds;
}

Tensor tied_input(int step) { return (torch::arange(24, torch::kFloat) + 5 * step).reshape({4, 6}).sin(); }

}  // namespace apex::test::combinations
