#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/thread_casts.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

// What the call of a function depends on, besides its arguments, so that a backward pass can repeat the call.
namespace apex::detail {

inline at::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

inline void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

/// The random number generators of the CPU, of the current GPU, since tensors may be in arguments that hide them, and of the
/// tensors' GPUs. Other GPUs are left alone: another thread may use them at the same time.
class Generators {
 public:
  explicit Generators(const std::vector<at::Tensor>& tensors) {
    states_.emplace_back(at::detail::getDefaultCPUGenerator(), at::Tensor());
    if (at::globalContext().hasCUDA()) {
      const c10::Device current = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
      if (at::detail::getCUDAHooks().hasPrimaryContext(current.index())) add(current);
    }
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.is_cuda()) add(tensor.device());
    }
    save();
  }
  void save() {
    for (auto& [generator, state] : states_) state = state_of(generator);
  }
  void restore() const {
    for (const auto& [generator, state] : states_) set_state(generator, state);
  }
  /// Forgets generators that are as they were: nothing has drawn from them.
  void drop_unchanged() {
    const auto unchanged = [](const auto& each) { return state_of(each.first).equal(each.second); };
    states_.erase(std::remove_if(states_.begin(), states_.end(), unchanged), states_.end());
  }

 private:
  void add(c10::Device gpu) {
    const auto& generator = at::globalContext().defaultGenerator(gpu);
    const auto is_same = [&](const auto& each) { return each.first == generator; };
    if (std::none_of(states_.begin(), states_.end(), is_same)) states_.emplace_back(generator, at::Tensor());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// LibTorch's autocast of the calling thread.
struct Autocast {
  struct Device {
    bool enabled;
    at::ScalarType dtype;
  };
  static constexpr at::DeviceType kDevices[] = {at::kCPU, at::kCUDA};

  Autocast() {
    for (size_t i = 0; i < std::size(kDevices); ++i) {
      devices[i] = {at::autocast::is_autocast_enabled(kDevices[i]), at::autocast::get_autocast_dtype(kDevices[i])};
    }
  }
  void set() const {
    for (size_t i = 0; i < std::size(kDevices); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], devices[i].enabled);
      at::autocast::set_autocast_dtype(kDevices[i], devices[i].dtype);
    }
  }
  Device devices[std::size(kDevices)];
};

/// Both calls cast weights anew: a cast from a cache would belong to a graph outside of the segment.
class NoCastCaches {
 public:
  NoCastCaches() : autocast_(at::autocast::is_autocast_cache_enabled()), weights_(amp::detail::weight_cache_is_off()) {
    at::autocast::set_autocast_cache_enabled(false);
    amp::detail::weight_cache_is_off() = true;
  }
  ~NoCastCaches() {
    at::autocast::set_autocast_cache_enabled(autocast_);
    amp::detail::weight_cache_is_off() = weights_;
  }
  NoCastCaches(const NoCastCaches&) = delete;
  NoCastCaches& operator=(const NoCastCaches&) = delete;

 private:
  bool autocast_, weights_;
};

/// The state of the thread that called the function, for the thread that calls it again.
class CallState {
 public:
  explicit CallState(const std::vector<at::Tensor>& inputs) : generators_(inputs) {}

  /// After the call: a generator that it did not use is left alone when it is repeated.
  void drop_unused_generators() { generators_.drop_unchanged(); }

  template <class Call>
  auto again(const Call& call) const {
    Generators generators = generators_;
    generators.save();
    const Autocast autocast;
    amp::detail::SavedCasts casts;
    const auto reset = c10::make_scope_exit([&] {
      casts.restore();
      autocast.set();
      generators.restore();
    });
    generators_.restore();
    autocast_.set();
    casts_.resume();
    const auto scales = float8_scales_.use();
    return call();
  }

 private:
  Generators generators_;
  Autocast autocast_;
  amp::detail::SavedCasts casts_;
  amp::detail::SavedFloat8Scales float8_scales_;
};

}  // namespace apex::detail
