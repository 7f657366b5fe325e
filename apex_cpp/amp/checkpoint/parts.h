#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/optimizer_content.h>
#include <apex_cpp/amp/handles/forward_casts.h>
#include <apex_cpp/amp/tensors/map_tensors.h>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace apex::amp::detail {

struct Session;

/// The models and optimizers of one checkpoint, in order, and the session of the models' handles.
template <class Module, class Optimizer>
struct Parts {
  std::vector<Module*> models;
  std::vector<Optimizer*> optimizers;
  std::shared_ptr<Session> session;
};
using SavedParts = Parts<const torch::nn::Module, const torch::optim::Optimizer>;
using LoadedParts = Parts<torch::nn::Module, torch::optim::Optimizer>;

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
/// Calls `f` for a single object, or for each element of a vector or tuple (also of `std::tie`).
template <class T, class F>
void for_each_part(T& shape, const F& f) {
  if constexpr (kIsVector<std::remove_const_t<T>>) {
    for (auto& one : shape) f(one);
  } else if constexpr (kIsTuple<std::remove_const_t<T>>) {
    std::apply([&](auto&... one) { (f(one), ...); }, shape);
  } else {
    f(shape);
  }
}

/// A module or optimizer, or the one that a holder or pointer refers to.
template <class Base, class T>
auto& part_of(T& part) {
  if constexpr (std::is_base_of_v<Base, T>) {
    return part;
  } else if constexpr (std::is_pointer_v<std::remove_const_t<T>>) {
    TORCH_CHECK(part, "a model or optimizer given for the checkpoint is a null pointer.");
    return *part;
  } else {
    TORCH_CHECK(part.get(), "a model or optimizer given for the checkpoint is an empty pointer or holder.");
    return *part.get();
  }
}

template <class T, class = void>
inline constexpr bool kIsModelHandle = false;
template <class T>
inline constexpr bool kIsModelHandle<T, std::void_t<decltype(std::declval<const T&>().patched().amp_casts())>> = true;

/// The session of a handle or of a module that was patched in place; null for any other module.
template <class Model>
std::shared_ptr<Session> session_of(const Model& model, const torch::nn::Module& module) {
  if constexpr (kIsModelHandle<Model>) {
    return model.patched().amp_casts().session;
  } else {
    return session_of(module);
  }
}

template <class Parts, class Models>
void add_models(Parts& parts, Models& models) {
  for_each_part(models, [&](auto& model) {
    auto& module = part_of<torch::nn::Module>(model);
    parts.models.push_back(&module);
    if (!parts.session) parts.session = session_of(model, module);
  });
}

template <class Parts, class Optimizers>
void add_optimizers(Parts& parts, Optimizers& optimizers) {
  for_each_part(optimizers, [&](auto& optimizer) { parts.optimizers.push_back(&part_of<torch::optim::Optimizer>(optimizer)); });
}

/// The parts of these models and, if they are given, optimizers: single ones, vectors or tuples.
template <class Parts, class Models, class... Optimizers>
Parts parts_of(Models& models, Optimizers&... optimizers) {
  Parts parts;
  add_models(parts, models);
  (add_optimizers(parts, optimizers), ...);
  return parts;
}

/// The stash of an optimizer's handle; null without amp. Errors, with the remedy: RuntimeError for an optimizer that
/// `initialize` has replaced, or that was moved from.
OptimizerStash* stash_of(const torch::optim::Optimizer& optimizer);

/// The session of the optimizers' handles, or `of_models`; null without amp. Errors: those of `stash_of`, and
/// RuntimeError for handles of several sessions.
std::shared_ptr<Session> session_of(const std::vector<const torch::optim::Optimizer*>& optimizers,
                                    const std::shared_ptr<Session>& of_models);

/// The level in force; empty without amp.
std::string opt_level_of(const std::shared_ptr<Session>& session);

ParamNames names_of(const std::vector<const torch::nn::Module*>& models);

/// The states of the default random number generators of the CPU and of each GPU. No synchronization.
std::vector<GeneratorContent> generator_states();

/// Changes nothing. Errors: c10::Error for a state that a generator of this process does not accept.
void check_generator_states(const std::vector<GeneratorContent>& states);

/// Restores checked states, and adds devices without a state, here or in the file, to `notes`.
void restore_generator_states(const std::vector<GeneratorContent>& states, std::vector<std::string>& notes);

/// Loads the content that `read` returns into models and optimizers; `path` is the file that it came from. Returns notes, as
/// `LoadedCheckpoint` has them. Errors: c10::Error naming `caller` and `path`, for errors of `read` and for content that does
/// not fit, before anything is changed; and if memory runs out while models are written.
std::vector<std::string> load_content(const std::string& caller, const std::string& path, const LoadedParts& parts,
                                      const std::function<const CheckpointContent&()>& read);

}  // namespace apex::amp::detail
