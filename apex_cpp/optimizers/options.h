#pragma once

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/optimizers/stepped_param.h>

#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

// Base classes of the fused optimizers' options and states. A derived class lists its members once,
//   static constexpr const char* kNames[] = {"lr", ...};
//   template <class Self> static auto members_of(Self& self) { return std::tie(self.lr_, ...); }
// and the base class saves, loads, compares and clones them.
namespace apex::optimizers {

using Betas = std::tuple<double, double>;

/// How an optimizer stores the float32 masters of bfloat16 parameters.
enum class MasterStorage {
  /// As tensors of their own, 4 bytes a parameter: made by amp::initialize, or by FusedAdam with master_weights.
  float32,
  /// As the parameter and an int16 with the difference from it, 2 more bytes. Masters and state have the bits that they have
  /// with float32. A parameter in the middle between two bfloat16 rounds away from zero instead of to even, since 16 bits
  /// cannot
  /// tell 65,537 masters apart. Apex: store_param_remainders of DistributedFusedAdam.
  remainder16,
  /// The same with an int8, 1 more byte: each step rounds the masters to 24 bits, which have 16 significant bits. FlashOptim
  /// (arXiv:2602.23349).
  remainder8,
  /// Not at all: no more bytes. Each step rounds the parameters to bfloat16 at random, up or down in proportion to the
  /// distance,
  /// and so loses nothing on average; rounded to nearest, a weight that changes by less than 2^-9 of its value in a step would
  /// never change. The random numbers depend on the step's number and the value alone, so that every thread, device and rank
  /// rounds alike. FusedAdam alone has it.
  stochastic,
};

/// "float32", "remainder16", "remainder8" or "stochastic", and back. Errors: ValueError for another name.
const char* name_of(MasterStorage storage);
MasterStorage master_storage_named(const std::string& name);

namespace detail {
// Of remainders.h.
at::Tensor loaded_remainder(const at::Tensor& param, const at::Tensor& loaded, MasterStorage storage, const std::string& name);

template <class T>
c10::IValue to_ivalue(const T& value) {
  return c10::IValue(value);
}
inline c10::IValue to_ivalue(const std::optional<at::ScalarType>& dtype) {
  return dtype ? c10::IValue(static_cast<int64_t>(*dtype)) : c10::IValue();
}

template <class T>
void from_ivalue(const c10::IValue& value, T& member) {
  member = value.to<T>();
}
inline void from_ivalue(const c10::IValue& value, std::optional<at::ScalarType>& dtype) {
  dtype = value.isNone() ? std::nullopt : std::optional(static_cast<at::ScalarType>(value.toInt()));
}

// Calls visit(name, member) for each member of `object`.
template <class Object, class Visit, size_t... I>
void for_each_member(Object& object, const Visit& visit, std::index_sequence<I...>) {
  auto members = Object::members_of(object);
  (visit(Object::kNames[I], std::get<I>(members)), ...);
}

template <class Object, class Visit>
void for_each_member(Object& object, const Visit& visit) {
  constexpr size_t kCount = std::tuple_size_v<decltype(Object::members_of(object))>;
  // One name for each member.
  static_assert(kCount == sizeof(Object::kNames) / sizeof(Object::kNames[0]));
  for_each_member(object, visit, std::make_index_sequence<kCount>());
}

// The front of all options. A program that changes from torch::optim::Adam to FusedAdam may keep the cast of
//   static_cast<torch::optim::AdamOptions&>(group.options()).lr(rate);
// It compiles, and writes where LibTorch's class has the rate. Options of LibTorch have their numbers in bytes 8 to 63. Words
// that nothing of ours writes stand there, so that such a write changes no option, and each step finds it.
class GuardedOptions : public torch::optim::OptimizerOptions {
 public:
  /// False after a write through a reference to another class. Compares bytes, since the program wrote another type.
  bool is_intact() const { return std::memcmp(words_.data(), kUnwritten.data(), sizeof words_) == 0; }

 private:
  // Numbers that are read through another class are NaN. It is a signaling NaN: arithmetic makes it a quiet one, so that
  // `lr(lr() * 0.5)` changes the bits, too. A quiet NaN would come back with the same bits.
  static constexpr uint64_t kNaN = 0x7ff4'a5a5'a5a5'a5a5;
  static constexpr std::array<uint64_t, 7> kUnwritten = {kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN};

  std::array<uint64_t, 7> words_ = kUnwritten;
};

}  // namespace detail

template <class Derived>
struct FusedOptions : detail::GuardedOptions {
  /// How the optimizer stores masters; for the whole optimizer, not for a group. With other values than float32, the masters of
  /// its bfloat16 parameters are the optimizer's own matter, with amp or without, whatever the level. Not saved. A file
  /// of `amp::save_checkpoint` can be loaded with any storage. A file of `torch::save` that holds remainders can be
  /// loaded with remainder16 and remainder8 only.
  MasterStorage master_storage() const { return master_storage_; }
  Derived& master_storage(MasterStorage storage) {
    master_storage_ = storage;
    return self();
  }

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override { return std::make_unique<Derived>(self()); }
  double get_lr() const override { return self().lr(); }
  void set_lr(const double lr) override { self().lr(lr); }

  /// Errors: RuntimeError naming an option that only this class or only the archive has.
  void serialize(torch::serialize::InputArchive& archive) override {
    check_all_known(archive.keys());
    detail::for_each_member(self(), [&](const std::string& name, auto& member) {
      c10::IValue value;
      TORCH_CHECK(archive.try_read(name, value), "The saved optimizer has no option '", name, "'", kOfAnotherClass);
      detail::from_ivalue(value, member);
    });
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    detail::for_each_member(
        self(), [&](const std::string& name, const auto& member) { archive.write(name, detail::to_ivalue(member)); });
  }

  /// Takes over the options of `from` that are saved.
  void assign_saved(const Derived& from) { Derived::members_of(self()) = Derived::members_of(from); }

  /// The guard counts, so that the options of an original that were written as another class reach the handle, whose step
  /// reports them.
  friend bool operator==(const Derived& a, const Derived& b) {
    return a.is_intact() == b.is_intact() && Derived::members_of(a) == Derived::members_of(b);
  }

 private:
  static constexpr const char* kOfAnotherClass =
      ": it was saved by another optimizer class. Load it into an optimizer of the class that saved it, or load the model "
      "alone.";

  // Without this check, a class could load the options of a class that has more, as FusedLAMB those of FusedMixedPrecisionLamb.
  static void check_all_known(const std::vector<std::string>& saved) {
    for (const std::string& name : saved) {
      const bool known = std::find(std::begin(Derived::kNames), std::end(Derived::kNames), name) != std::end(Derived::kNames);
      TORCH_CHECK(known, "The saved optimizer has the option '", name, "', which this class has not", kOfAnotherClass);
    }
  }

  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  MasterStorage master_storage_ = MasterStorage::float32;
};

// The base of all states, whatever the class.
struct ShapedParamState : torch::optim::OptimizerParamState, amp::CastableParamState {
  /// Errors: RuntimeError naming the parameter if its shape differs from the state's.
  virtual void check_shapes(const detail::SteppedParam& of) const = 0;

  /// With a master_storage other than float32: int16 or int8, of the shape of a bfloat16 parameter. The other tensors are then
  /// float32, as a master's.
  at::Tensor remainder;
};

// The state of one parameter. Undefined tensors are not saved.
template <class Derived>
struct FusedParamState : ShapedParamState {
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override { return std::make_unique<Derived>(self()); }

  void serialize(torch::serialize::InputArchive& archive) override {
    for_each_tensor([&](const std::string& name, at::Tensor& tensor) { archive.try_read(name, tensor); });
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    for_each_tensor([&](const std::string& name, const at::Tensor& tensor) {
      if (tensor.defined()) archive.write(name, tensor);
    });
  }

  void check_shapes(const detail::SteppedParam& of) const override {
    for_each_tensor([&](const std::string& name, const at::Tensor& tensor) {
      TORCH_CHECK(!tensor.defined() || tensor.sizes() == of.param.sizes(), of.name(), " has a '", name, "' of shape ",
                  tensor.sizes(),
                  " from earlier steps. Drop this state with optimizer.state().erase(param.unsafeGetTensorImpl()): the "
                  "parameter's next step is then its first.");
    });
  }

  /// Moves loaded tensors to the parameter's device and layout, and converts them to its dtype, or to float32 unless
  /// kHasDtypeOfParam. The remainder becomes what `storage` needs. Errors: RuntimeError beginning with the parameter's name if
  /// a tensor has another shape, and those of loaded_remainder.
  void fit_to(const at::Tensor& param, const std::string& name_of_param, MasterStorage storage) {
    remainder = detail::loaded_remainder(param, remainder, storage, name_of_param);
    const at::ScalarType dtype = has_dtype_of_param() ? param.scalar_type() : at::kFloat;
    for_each_tensor([&](const std::string& name, at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const at::ScalarType as = &tensor == &remainder ? tensor.scalar_type() : dtype;
      tensor = detail::loaded_like(param, tensor, as, name_of_param, name);
    });
  }

  void cast_to(at::ScalarType dtype) override {
    if (!has_dtype_of_param()) return;
    detail::for_each_member(self(), [&](const std::string&, at::Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.to(dtype);
    });
  }

 private:
  bool has_dtype_of_param() const { return Derived::kHasDtypeOfParam && !remainder.defined(); }

  // Visits the members and the remainder.
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    detail::for_each_member(self(), visit);
    visit("remainder", remainder);
  }
  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    detail::for_each_member(self(), visit);
    visit("remainder", remainder);
  }

  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

}  // namespace apex::optimizers

namespace apex::optimizers::detail {

/// What has options, for errors: an optimizer, or a group of one. Every step makes them, without an allocation.
struct OptionsOwner {
  const char* optimizer;  // the class's name
  std::optional<size_t> group;
  bool checks_lr;  // false after construction: schedulers may move the rate where they like
};
std::ostream& operator<<(std::ostream& out, const OptionsOwner& owner);

/// How an optimizer class checks and copies the options of its groups, and the class of its states.
struct OptionsRules {
  const char* optimizer;         // the class's name
  const std::type_info* states;  // the class of each parameter's state
  bool (*are_states)(const torch::optim::OptimizerParamState&);
  bool (*are_own)(const torch::optim::OptimizerOptions&);
  void (*check_values)(const OptionsOwner& owner, const torch::optim::OptimizerOptions&);
  void (*assign)(torch::optim::OptimizerOptions& to, const torch::optim::OptimizerOptions& from);
};

/// Errors: TypeError naming the group if its options are of another class.
void check_class(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options);

/// Errors: as `check_class`, TypeError if the options were written as another class, and those of `check_values` with the
/// group's name.
void check_options(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options,
                   bool checks_lr = true);

}  // namespace apex::optimizers::detail
