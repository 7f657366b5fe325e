#include <apex_cpp/amp/checkpoint/parts.h>

#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/amp_session.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <mutex>

namespace apex::amp::detail {

OptimizerStash* stash_of(const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(!is_original(optimizer),
              "the optimizer given for the checkpoint was replaced by amp::initialize. Pass the handle from `auto [net, opt] "
              "= amp::initialize(model, optimizer, …)`, not the original optimizer.");
  const auto* handle = dynamic_cast<const AmpOptimizerBase*>(&optimizer);
  if (!handle) return nullptr;
  TORCH_CHECK(handle->stash(),
              "the optimizer handle given for the checkpoint was moved from. Pass the handle that it was moved into.");
  handle->stash()->check_in_use();
  return handle->stash().get();
}

std::shared_ptr<Session> session_of(const std::vector<const torch::optim::Optimizer*>& optimizers,
                                    const std::shared_ptr<Session>& of_models) {
  std::shared_ptr<Session> session;
  for (const auto* optimizer : optimizers) {
    auto* stash = stash_of(*optimizer);
    if (!stash) continue;
    TORCH_CHECK(!session || session.get() == &stash->session(),
                "the optimizers given for the checkpoint come from two amp::initialize calls, each with loss scalers of its "
                "own. Make a checkpoint for each call.");
    session = stash->session().shared_from_this();
  }
  return session ? session : of_models;
}

std::string opt_level_of(const std::shared_ptr<Session>& session) {
  return session && session->enabled() ? session->settings.properties.opt_level : "";
}

ParamNames names_of(const std::vector<const torch::nn::Module*>& models) {
  ParamNames names;
  for (size_t i = 0; i < models.size(); ++i) {
    for (const auto& item : models[i]->named_parameters()) names.add(item.value(), full_name(i, item.key()));
  }
  return names;
}

namespace {

struct NamedGenerator {
  std::string device;
  at::Generator generator;
};

std::vector<NamedGenerator> default_generators() {
  std::vector<NamedGenerator> generators = {{"cpu", at::detail::getDefaultCPUGenerator()}};
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

at::Generator copy_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
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
      copy_of(generator).set_state(saved->state);
    } catch (const c10::Error& error) {
      C10_THROW_ERROR(
          Error, "the random number generator of " + device + " rejects the saved state: " + error.what_without_backtrace());
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
      notes.push_back("The file has no random number state of " + device + ", which keeps its present state.");
    }
  }
  for (const auto& saved : states) {
    const bool here =
        std::any_of(generators.begin(), generators.end(), [&](const auto& g) { return g.device == saved.device; });
    if (!here) notes.push_back("The file has the random number state of " + saved.device + ", a device that is missing here.");
  }
}

}  // namespace apex::amp::detail
