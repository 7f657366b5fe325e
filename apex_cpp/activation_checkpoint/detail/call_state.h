#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
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

/// The random number generators of the CPU and of every GPU in use: a function may draw on GPUs of which no argument tells.
class Generators {
 public:
  Generators() {
    states_.emplace_back(at::detail::getDefaultCPUGenerator(), at::Tensor());
    const auto& cuda = at::detail::getCUDAHooks();
    const c10::DeviceIndex count = at::globalContext().hasCUDA() ? cuda.deviceCount() : 0;
    for (c10::DeviceIndex device = 0; device < count; ++device) {
      if (cuda.hasPrimaryContext(device)) states_.emplace_back(cuda.getDefaultGenerator(device), at::Tensor());
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
