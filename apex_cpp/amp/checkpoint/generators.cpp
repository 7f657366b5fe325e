#include <apex_cpp/amp/checkpoint/generators.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <mutex>

namespace apex::amp::detail {
namespace {

struct NamedGenerator {
  std::string device;
  at::Generator generator;
};

std::vector<NamedGenerator> default_generators() {
  std::vector<NamedGenerator> generators = {{"cpu", at::detail::getDefaultCPUGenerator()}};
  if (!at::hasCUDA()) return generators;
  for (int i = 0; i < at::detail::getCUDAHooks().deviceCount(); ++i) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
    generators.push_back({device.str(), at::globalContext().defaultGenerator(device)});
  }
  return generators;
}

const GeneratorContent* find(const std::vector<GeneratorContent>& states, const std::string& device) {
  for (const auto& state : states) {
    if (state.device == device) return &state;
  }
  return nullptr;
}

}  // namespace

std::vector<GeneratorContent> generator_states() {
  std::vector<GeneratorContent> states;
  for (auto& [device, generator] : default_generators()) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states.push_back({device, generator.get_state()});
  }
  return states;
}

void check_generator_states(const std::vector<GeneratorContent>& states) {
  for (auto& [device, generator] : default_generators()) {
    const auto* saved = find(states, device);
    if (!saved) continue;
    try {
      generator.clone().set_state(saved->state);
    } catch (const c10::Error& error) {
      C10_THROW_ERROR(Error, "the random number generator of " + device +
                                 " does not take the saved state: " + error.what_without_backtrace());
    }
  }
}

void restore_generator_states(const std::vector<GeneratorContent>& states, std::vector<std::string>& notes) {
  const auto generators = default_generators();
  for (auto [device, generator] : generators) {
    if (const auto* saved = find(states, device)) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(saved->state);
    } else {
      notes.push_back("The file has no random number state for " + device + ", which keeps its own.");
    }
  }
  for (const auto& saved : states) {
    const bool here =
        std::any_of(generators.begin(), generators.end(), [&](const auto& g) { return g.device == saved.device; });
    if (!here) notes.push_back("The file's random number state for " + saved.device + " has no device here.");
  }
}

}  // namespace apex::amp::detail
