#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/handles/model.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>

#include "opt_levels/initialize_options.h"
#include "opt_levels/opt_level.h"

namespace apex::amp {

using opt_levels::CastLists;
using opt_levels::InitializeOptions;
using opt_levels::OptLevel;

namespace detail {

struct Session;

/// One `initialize` call: first checks that change nothing, then the models, then the optimizers.
class Initializer {
 public:
  /// Resolves the settings. Errors as documented at `amp::initialize`.
  Initializer(const OptLevel& level, const InitializeOptions& options);

  const std::shared_ptr<Session>& session() const { return session_; }
  void add_model(torch::nn::Module& module) { models_.push_back(&module); }
  /// `own_class`: the static class of the optimizer in the program; null if the class is determined at run time.
  void add_optimizer(torch::optim::Optimizer& optimizer, const std::type_info* own_class) {
    optimizers_.push_back({&optimizer, own_class});
  }
  /// Checks all models and optimizers and prints the properties. Changes no model and no optimizer.
  void check();
  /// Adds the handle of one model, made after `check`.
  PatchedModel& add_patched() { return patched_.emplace_back(); }
  /// Casts the models and the optimizers' existing state, returns what `make_handles` makes of the optimizers, and makes this
  /// the current session. Errors: RuntimeError if a part fails: the models are then cast in part, and the session stays.
  template <class MakeHandles>
  auto apply(const MakeHandles& make_handles) {
    try {
      cast_models();
      auto handles = make_handles();
      make_current();
      return handles;
    } catch (const std::exception& error) {
      fail_in_part(error);
    }
  }

 private:
  /// The prefix of a model's parameter names, such as "model0."; empty for a single model.
  std::string prefix_of(size_t model) const;
  void name_parameters();
  void check_not_cast() const;
  void check_kept_modules() const;
  void check_module_paths(const std::vector<std::string>& paths, const char* option, bool takes_parameters) const;
  void choose_bfloat16_modules();
  void add_names_of_ties(std::vector<std::string>& modules) const;
  void begin_float8_history();
  void cast_models();
  void convert_models(c10::ScalarType dtype);
  void make_current();
  void replace_casts_of_parts() const;
  [[noreturn]] void fail_in_part(const std::exception& error) const;
  /// The casts that every model's forward makes.
  ForwardCasts forward_casts() const;

  OptLevel level_;
  std::shared_ptr<Session> session_;
  std::optional<bool> huge_pages_;  // none: the CPU allocator stays as it is
  std::vector<torch::nn::Module*> models_;
  std::deque<PatchedModel> patched_;
  struct Optimizer {
    torch::optim::Optimizer* optimizer;
    const std::type_info* own_class;
  };
  std::vector<Optimizer> optimizers_;
};

// ---- optimizers: `optimizer_of` and `handle_for` accept objects, pointers and smart pointers ----

template <class Opt>
torch::optim::Optimizer& optimizer_of(Opt& optimizer) {
  if constexpr (std::is_base_of_v<torch::optim::Optimizer, Opt>) {
    return optimizer;
  } else {
    TORCH_CHECK(optimizer, "amp::initialize was given a null optimizer.");
    return *optimizer;  // a raw or smart pointer
  }
}

template <class Opt>
inline constexpr bool kIsOptimizer = std::is_base_of_v<torch::optim::Optimizer, Opt>;
template <class Opt>
inline constexpr bool kIsHandle = std::is_base_of_v<AmpOptimizerBase, Opt>;
/// The static class of an optimizer: of the object, or of what a raw or smart pointer points to.
template <class Opt>
struct HeldAs {
  using type = Opt;
};
template <class Opt>
struct HeldAs<Opt*> : HeldAs<Opt> {};
template <class Opt, class Deleter>
struct HeldAs<std::unique_ptr<Opt, Deleter>> : HeldAs<Opt> {};
template <class Opt>
struct HeldAs<std::shared_ptr<Opt>> : HeldAs<Opt> {};
template <class Opt>
using Held = typename HeldAs<std::decay_t<Opt>>::type;

/// Whether the handle's class is chosen at run time: for an abstract class, or a pointer to a class that makes its own handle.
template <class Opt>
inline constexpr bool kIsErased = std::is_abstract_v<Held<Opt>> || (!kIsOptimizer<Opt> && kMakesOwnHandle<Held<Opt>>);
template <class Opt>
const std::type_info* own_class() {
  return std::is_abstract_v<Held<Opt>> ? nullptr : &typeid(Held<Opt>);
}
template <class Opt>
struct PointsToOptimizer : std::false_type {};
template <class Opt>
struct PointsToOptimizer<Opt*> : std::bool_constant<kIsOptimizer<Opt>> {};
template <class Opt, class Deleter>
struct PointsToOptimizer<std::unique_ptr<Opt, Deleter>> : std::bool_constant<kIsOptimizer<Opt>> {};
template <class Opt>
struct PointsToOptimizer<std::shared_ptr<Opt>> : std::bool_constant<kIsOptimizer<Opt>> {};

template <class Opt>
auto handle_of(Opt& optimizer, const std::shared_ptr<Session>& session) {
  if constexpr (kIsHandle<Opt>) {
    return Opt(std::move(optimizer));  // unreachable: `check` rejects a handle
  } else {
    return AmpOptimizer<Opt>(std::move(optimizer), session);
  }
}

/// The handle of one optimizer: by value for an object of a concrete class; a unique_ptr (for a shared_ptr, a shared_ptr) to
/// the static class for a pointer or a reference to an abstract class.
template <class Opt>
auto handle_for(Opt& optimizer, const std::shared_ptr<Session>& session) {
  if constexpr (std::is_abstract_v<Held<Opt>>) {
    return erased_handle(optimizer_of(optimizer), session);
  } else if constexpr (kIsErased<Opt>) {  // the handle derives from the class that makes it
    return std::unique_ptr<Held<Opt>>(static_cast<Held<Opt>*>(erased_handle(optimizer_of(optimizer), session).release()));
  } else if constexpr (kIsOptimizer<Opt>) {
    return handle_of(optimizer, session);
  } else {
    using Handle = decltype(handle_of(*optimizer, session));
    return std::unique_ptr<Held<Opt>>(std::make_unique<Handle>(handle_of(*optimizer, session)));
  }
}
template <class Opt>
auto handle_for(std::shared_ptr<Opt>& optimizer, const std::shared_ptr<Session>& session) {
  Opt* pointer = optimizer.get();
  auto handle = handle_for(pointer, session);
  return std::shared_ptr<typename decltype(handle)::element_type>(std::move(handle));
}

// ---- one, std::tie(...) or a vector ----

template <class T, class F>
auto map_shape(T& one, F&& f) {
  return f(one);
}
template <class... Ts, class F>
auto map_shape(std::tuple<Ts...>& several, F&& f) {
  return std::apply([&](auto&... each) { return std::tuple<decltype(f(each))...>{f(each)...}; }, several);
}
template <class T, class F>
auto map_shape(std::vector<T>& several, F&& f) {
  std::vector<decltype(f(several.front()))> results;
  results.reserve(several.size());
  for (auto& each : several) results.push_back(f(each));
  return results;
}
template <class T, class F>
void for_each(T&& shape, F&& f) {
  map_shape(shape, [&](auto& each) {
    f(each);
    return 0;
  });
}

template <class T>
struct IsOptimizers : std::bool_constant<kIsOptimizer<T> || PointsToOptimizer<T>::value> {};
template <class T>
struct IsOptimizers<std::vector<T>> : IsOptimizers<T> {};
template <class... Ts>
struct IsOptimizers<std::tuple<Ts&...>> : std::bool_constant<(IsOptimizers<std::remove_const_t<Ts>>::value && ...)> {};
template <class T>
using EnableIfOptimizers = std::enable_if_t<IsOptimizers<std::decay_t<T>>::value>;
template <class T>
using EnableIfModels = std::enable_if_t<!IsOptimizers<std::decay_t<T>>::value>;

}  // namespace detail

/// Makes models and optimizers train at an opt level. Apex: `amp.initialize`.
///
/// `models`: a TORCH_MODULE holder, a shared_ptr to a module or a Module struct. `optimizers`: any torch::optim optimizer, or a
/// pointer to one. For several, pass `std::tie(a, b)` or a vector. Returns a pair of handles in the same shape:
/// `amp::Model<Net>` (the same holder for AMP_MODULE) and `amp::AmpOptimizer<Opt>` (smart pointers for pointers). Use the
/// handles in place of the originals: `auto [net, opt] = amp::initialize(model, optimizer, "O2");`. A scheduler that was built
/// on an original works as long as the original lives: not where the handle is assigned to the pointer that held it. A holder
/// or shared_ptr passed as an lvalue afterwards points to the handle's module, so that both are one object. Other copies of it
/// still point to the original module, which shares parameters, buffers and children with the handle, and lives as long as the
/// handle.
///
/// Parameters are cast in place: each stays the same TensorImpl on the same device.
///
/// Operators are cast on the calling thread, and on any other thread from its first forward pass of a handle on, until
/// the next `initialize` or `reset`. (A later `initialize` with `enabled` false ends casts only if their handles are
/// gone.) Operators are not cast in an optimizer's step or in a backward pass, except in a forward pass that a
/// torch::autograd::Function recomputes there. At O1 and O4 the cast lists decide. At O2, O3, O5 and O6 the handle's
/// forward computes in the type of its 16-bit weights; O6 rounds the factors of matrix products to FP8. For the
/// *original* model, called on this thread, FP32 inputs are cast to the weights' type and outputs stay 16-bit; losses
/// then run in FP32 unless `cast_model_outputs` is a 16-bit type.
///
/// LibTorch's `parameters()` lists a shared parameter once for each module that has it. The handle's groups list it once, as
/// Python's `parameters()` does, and step it once. Without amp, or with `enabled` false, torch's own optimizers step it as
/// often as it is listed.
///
/// The process's CPU allocator stays as it is, unless the program asks for huge pages: with the option `huge_pages`, the same
/// key in the level's YAML, or APEX_CPP_HUGE_PAGES=on in the environment, in this order. A CPU allocator of the program's own
/// always stays.
///
/// A model may be initialized again, at any level, with a new optimizer. (This is not needed after unfreezing layers: an
/// unfrozen parameter of the optimizer gets its master automatically, and `add_param_group` takes new parameters.) The new
/// call's casts, scalers and masters replace the old ones. Weights continue from their 16-bit values. Optimizers that hold
/// masters of the model's parameters are retired: their next use is an error. So are those that were not used yet, and would
/// make masters of parameters that the new optimizers train. Use the handles of the newest call.
///
/// `level` may be a name, or read from YAML. Explicit `options` override YAML, which overrides the level's presets.
/// Errors, before any change: RuntimeError for an unknown level, an option that the level forbids, a model that already has
/// 16-bit parameters, an optimizer that is already a handle or has no parameter of the models, two optimizers over one
/// parameter, or LBFGS with master weights; TypeError for a parameter dtype that amp does not train, and for an optimizer whose
/// class differs from its static class; ValueError for a bad value (in the environment too), a parameter in two groups of an
/// optimizer, or a cast list that names an unknown operator. Each message names the cause and the remedy. Where memory runs out
/// while parameters are cast, RuntimeError: the models may be cast in part, and the session before stays the current one.
template <class Models, class Optimizers, class = detail::EnableIfModels<Models>,
          class = detail::EnableIfOptimizers<Optimizers>>
[[nodiscard]] auto initialize(Models&& models, Optimizers&& optimizers, const OptLevel& level = OptLevel("O1"),
                              const InitializeOptions& options = {}) {
  detail::Initializer call(level, options);
  detail::for_each(models, [&](auto& model) { call.add_model(detail::module_of(model)); });
  detail::for_each(optimizers, [&](auto& optimizer) {
    call.add_optimizer(detail::optimizer_of(optimizer), detail::own_class<std::decay_t<decltype(optimizer)>>());
  });
  call.check();
  auto new_models = detail::map_shape(models, [&](auto& model) { return detail::patch(model, call.add_patched()); });
  auto handles = call.apply(
      [&] { return detail::map_shape(optimizers, [&](auto& opt) { return detail::handle_for(opt, call.session()); }); });
  return std::make_pair(std::move(new_models), std::move(handles));
}

template <class Models, class Optimizers, class = detail::EnableIfModels<Models>,
          class = detail::EnableIfOptimizers<Optimizers>>
[[nodiscard]] auto initialize(Models&& models, Optimizers&& optimizers, const InitializeOptions& options) {
  return initialize(std::forward<Models>(models), std::forward<Optimizers>(optimizers), OptLevel("O1"), options);
}

/// For inference: initializes models without optimizers and returns only the model handles.
template <class Models, class = detail::EnableIfModels<Models>>
[[nodiscard]] auto initialize(Models&& models, const OptLevel& level = OptLevel("O1"), const InitializeOptions& options = {}) {
  std::vector<torch::optim::Optimizer*> none;
  return initialize(std::forward<Models>(models), none, level, options).first;
}

template <class Models, class = detail::EnableIfModels<Models>>
[[nodiscard]] auto initialize(Models&& models, const InitializeOptions& options) {
  return initialize(std::forward<Models>(models), OptLevel("O1"), options);
}

}  // namespace apex::amp
