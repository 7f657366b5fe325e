#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <type_traits>

namespace apex::amp::detail {

struct Session;

template <class... Opts>
struct OptimizerClasses {
  template <class Opt>
  static constexpr bool contains = (std::is_same_v<Opt, Opts> || ...);
};
using TorchOptimizers = OptimizerClasses<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW, torch::optim::RMSprop,
                                         torch::optim::Adagrad, torch::optim::LBFGS>;

template <class Opt>
using MakeAmpHandle = std::unique_ptr<torch::optim::Optimizer> (Opt::*)(const std::shared_ptr<Session>&);

/// Whether `Opt` itself declares `make_amp_handle`, rather than a class that it is derived from.
template <class Opt, class = void>
inline constexpr bool kMakesOwnHandle = false;
template <class Opt>
inline constexpr bool
    kMakesOwnHandle<Opt, std::enable_if_t<std::is_same_v<decltype(&Opt::make_amp_handle), MakeAmpHandle<Opt>>>> = true;

/// Whether `Opt` is a class of the program's own, whose `step` may write what those of torch and of this library never do; a
/// wrapper of this library is one if what it goes around is.
template <class Opt>
inline constexpr bool kIsOwnClass = !TorchOptimizers::contains<Opt> && !kMakesOwnHandle<Opt>;
template <template <class> class Wrapper, class Opt>
inline constexpr bool kIsOwnClass<Wrapper<Opt>> = !kMakesOwnHandle<Wrapper<Opt>> || kIsOwnClass<Opt>;

}  // namespace apex::amp::detail
