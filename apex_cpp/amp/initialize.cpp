#include <apex_cpp/amp/initialize.h>

#include <ATen/Context.h>

#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/cpu_fallback/cpu_16bit.h>
#include <apex_cpp/amp/handles/checks.h>
#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/huge_pages.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/torch_compat/private_members.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "opt_levels/resolve.h"

namespace apex::amp::detail {

namespace {

void switch_tf32(bool allowed) {
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

bool is_on_gpu(const torch::nn::Module* model) {
  const auto tensors = tensors_of(*model);
  return !tensors.empty() &&
         std::none_of(tensors.begin(), tensors.end(), [](const auto& item) { return item.second.is_cpu(); });
}

void choose_cpu_compute(CastRules& rules, const opt_levels::Settings& settings, const std::vector<torch::nn::Module*>& models) {
  register_float32_kernels();
  // An explicit setting also applies to a model that moves to the CPU later. The automatic choice measures the CPU, so it is
  // skipped for a model on a GPU.
  const bool is_automatic = settings.cpu_16bit == opt_levels::Cpu16Bit::automatic;
  const bool all_on_gpu = !models.empty() && std::all_of(models.begin(), models.end(), is_on_gpu);
  rules.set_leaves_cpu_tensors(all_on_gpu);
  if (is_automatic && all_on_gpu) return;
  const CpuCompute compute = cpu_compute(settings.cpu_16bit, rules.low_type());
  print_cpu_compute(settings, rules.low_type(), compute.in_float32, compute.reason);
  const FloatTypes type(rules.low_type()), none;
  rules.set_cpu_kernels(compute.in_float32 ? type : none, compute.own_kernels ? type : none);
}

// Ends this thread's casts of an earlier session without handles, also if the new `initialize` has `enabled` false.
void end_casts_if_gone(const std::shared_ptr<Session>& session) {
  if (!session || session.use_count() > 1 || !session->cast_rules) return;
  if (thread_casts().rules == session->cast_rules) release_threads(session->cast_rules);
}

}  // namespace

Initializer::Initializer(const OptLevel& level, const InitializeOptions& options)
    : level_(level), session_(std::make_shared<Session>(opt_levels::resolve(level, options))) {}

std::string Initializer::prefix_of(size_t model) const {
  return models_.size() > 1 ? "model" + std::to_string(model) + "." : "";
}

void Initializer::name_parameters() {
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto& item : models_[i]->named_parameters()) {
      session_->parameter_names->add(item.value(), prefix_of(i) + item.key());
    }
  }
}

void Initializer::check_kept_modules() const {
  const auto& settings = session_->settings;
  check_module_paths(settings.float32_modules, "float32_modules", /*takes_parameters=*/false);
  if (settings.bfloat16_modules) check_module_paths(*settings.bfloat16_modules, "bfloat16_modules", /*takes_parameters=*/true);
}

void Initializer::check_module_paths(const std::vector<std::string>& paths, const char* option, bool takes_parameters) const {
  if (paths.empty()) return;
  std::set<std::string> modules;
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto& item : models_[i]->named_parameters()) {
      const std::string name = prefix_of(i) + item.key();
      modules.insert(takes_parameters ? name : module_path_of(name));
    }
    for (const auto& item : models_[i]->named_buffers()) modules.insert(prefix_of(i) + item.key());
  }
  for (const auto& path : paths) {
    const bool found = std::any_of(modules.begin(), modules.end(),
                                   [&](const std::string& module) { return !module.empty() && is_within(module, {path}); });
    TORCH_CHECK_VALUE(found, "amp::initialize found no module '", path, "' with parameters, which ", option,
                      " names, and no buffer of this name. Give a path such as "
                      "\"encoder.layers.0\", as named_modules() of the model has them",
                      models_.size() > 1 ? ", after \"model0.\" for the first model." : ".");
  }
}

// At O6, unless the settings name them: the first and the last layer of each model, in the order in which modules were
// registered. A layer is a module with a parameter of two or more dimensions. Of a model without such modules: its own
// parameters.
void Initializer::choose_bfloat16_modules() {
  auto& settings = session_->settings;
  if (settings.fp8 == opt_levels::Float8Recipe::none) return;
  if (settings.bfloat16_modules) return add_names_of_ties(*settings.bfloat16_modules);
  std::vector<std::string> chosen;
  for (size_t i = 0; i < models_.size(); ++i) {
    std::vector<std::string> layers, of_root;
    for (const auto& item : models_[i]->named_parameters()) {
      if (item.value().dim() < 2) continue;
      const std::string module = module_path_of(item.key());
      (module.empty() ? of_root : layers).push_back(prefix_of(i) + (module.empty() ? item.key() : module));
    }
    if (layers.empty()) layers = of_root;
    if (layers.empty()) continue;
    chosen.push_back(layers.front());
    if (layers.back() != layers.front()) chosen.push_back(layers.back());
  }
  settings.bfloat16_modules = chosen;
}

// A parameter that two modules share, of one model or of two, is known by its first name where operators are cast, and by its
// name in each model where the models are cast.
void Initializer::add_names_of_ties(std::vector<std::string>& modules) const {
  const std::vector<std::string> given = modules;
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto& item : models_[i]->named_parameters()) {
      const std::string name = prefix_of(i) + item.key();
      const auto* first = session_->parameter_names->find(item.value());
      if (!first || is_within(name, given) == is_within(*first, given)) continue;
      modules.push_back(is_within(name, given) ? *first : name);
    }
  }
}

// Beside the first weight, so that a model on one GPU needs no copies.
void Initializer::begin_float8_history() {
  std::vector<std::string> weights;
  c10::Device device = at::kCPU;
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto& item : models_[i]->named_parameters()) {
      const bool is_first_name = *session_->parameter_names->find(item.value()) == prefix_of(i) + item.key();
      if (item.value().dim() < 2 || !is_first_name) continue;
      if (weights.empty()) device = item.value().device();
      weights.push_back(prefix_of(i) + item.key());
    }
  }
  session_->cast_rules->set_float8_history(
      std::make_shared<Float8History>(std::move(weights), device, session_->settings.fp8_gradients));
}

// A part that is the model of another call, such as a teacher, casts its own inputs.
void Initializer::check_not_cast() const {
  for (const auto* model : models_) {
    std::unordered_set<const at::TensorImpl*> of_parts;
    for (const auto& part : model->modules(/*include_self=*/false)) {
      if (!session_of(*part)) continue;
      for (const auto& [name, tensor] : tensors_of(*part)) of_parts.insert(tensor.unsafeGetTensorImpl());
    }
    for (const auto& [name, tensor] : tensors_of(*model)) {
      const bool is_cast = is_low_precision(tensor.scalar_type()) && was_cast_by_amp(tensor);
      TORCH_CHECK(!is_cast || of_parts.count(tensor.unsafeGetTensorImpl()) != 0,
                  "amp::initialize with enabled(false) was given a model whose ", name,
                  " an earlier amp::initialize has cast to ", tensor.scalar_type(),
                  ". Initialize it at O0, which makes its weights FP32 again.");
    }
  }
}

void Initializer::check() {
  const auto& settings = session_->settings;
  std::unordered_set<const torch::optim::Optimizer*> seen;
  for (const auto& [optimizer, own_class] : optimizers_) {
    check_class(*optimizer, own_class);
    check_not_initialized(*optimizer);
    TORCH_CHECK(seen.insert(optimizer).second, "amp::initialize was given the same optimizer twice.");
  }
  if (!session_->enabled()) return check_not_cast();
  TORCH_CHECK(at::globalContext().userEnabledCuDNN(),
              "amp::initialize needs cuDNN, which was switched off. Call at::globalContext().setUserEnabledCuDNN(true).");
  const auto in_environment = huge_pages_in_environment();
  huge_pages_ = settings.huge_pages ? settings.huge_pages : in_environment;
  name_parameters();
  check_kept_modules();
  add_names_of_ties(session_->settings.float32_modules);
  choose_bfloat16_modules();
  for (const auto* model : models_) check_model(*model, *session_);
  check_ties(models_, *session_);
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const auto& [optimizer, own_class] : optimizers_) {
    check_optimizer(*optimizer, *session_);
    optimizers.push_back(optimizer);
  }
  check_one_master_each(optimizers, *session_);
  for (const auto* model : models_) warn_of_float64(*model);
  print_properties(level_, settings);
  if (!huge_pages_ && std::any_of(models_.begin(), models_.end(), would_gain_from_huge_pages)) print_huge_pages_hint(settings);
  register_unboxed_kernels();
  session_->cast_rules = CastRules::from(settings, session_->parameter_names);
  if (session_->cast_rules) choose_cpu_compute(*session_->cast_rules, settings, models_);
  if (settings.fp8 == opt_levels::Float8Recipe::delayed) begin_float8_history();
}

void Initializer::make_current() {
  const auto before = current_session();
  set_current_session(session_);
  end_casts_if_gone(before);
  if (session_->enabled()) {
    if (session_->settings.allow_tf32) switch_tf32(*session_->settings.allow_tf32);
    cast_on_this_thread(session_->cast_rules);
  }
  replace_casts_of_parts();
  for (const auto& [module, repoint, held_elsewhere] : patched_) {
    module->set_amp_casts(forward_casts());
    if (repoint) repoint();
    const auto weights = module->amp_casts().inputs;
    if (!weights || !is_low_precision(*weights)) continue;
    if (held_elsewhere) warn_of_other_holders(*held_elsewhere);
    if (module->amp_stands_for_another()) warn_of_saving_originals();
  }
}

// A part of a model may be the model of an earlier call. Its casts belong to the types that its weights had then.
void Initializer::replace_casts_of_parts() const {
  if (!session_->enabled()) return;
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto& part : models_[i]->named_modules("", /*include_self=*/false)) {
      auto* patched = dynamic_cast<CastsForward*>(part.value().get());
      if (!patched || !patched->amp_casts().session) continue;
      ForwardCasts casts = forward_casts();
      if (is_within(prefix_of(i) + part.key(), session_->settings.float32_modules)) casts.inputs.reset();
      patched->set_amp_casts(std::move(casts));
    }
  }
}

// Such as no memory for the copy of a parameter. Keeping all FP32 parameters until the last one is cast would take more memory.
void Initializer::fail_in_part(const std::exception& error) const {
  if (!session_->enabled()) throw;
  C10_THROW_ERROR(Error, std::string("amp::initialize failed after it had begun to cast the models: ") +
                             torch_compat::text_of(error) + ". Make the models and the optimizers again.");
}

void Initializer::cast_models() {
  if (!session_->enabled()) return;
  if (huge_pages_) set_huge_pages(*huge_pages_);
  InPlaceCaster to_float32(at::kFloat);
  std::unordered_set<const at::TensorImpl*> trained;
  for (const auto& [optimizer, own_class] : optimizers_) {
    for (const auto& param : params_of(optimizer->param_groups())) trained.insert(param.unsafeGetTensorImpl());
  }
  for (auto* model : models_) undo_earlier_casts(*model, to_float32, trained);
  const auto& properties = session_->settings.properties;
  if (!properties.cast_model_type) return;
  convert_models(*properties.cast_model_type);
  for (const auto* model : models_) remember_casts(*model, session_);
  // MODEL-07. With masters the FP32 state later moves to them unchanged, without rounding to 16 bits.
  if (session_->has_masters()) return;
  for (const auto& [optimizer, own_class] : optimizers_) match_state_to_params(*optimizer, /*has_masters=*/false);
}

void Initializer::convert_models(c10::ScalarType dtype) {
  const ViewsOfBefore views(models_);
  {
    InPlaceCaster casts(dtype);
    for (size_t i = 0; i < models_.size(); ++i) {
      convert_unless(*models_[i], casts, [&](const std::string& path, const torch::nn::Module& module) {
        const bool is_kept_norm =
            session_->settings.properties.keep_batchnorm_fp32.value_or(false) && is_affine_batch_norm(module);
        return is_kept_norm || is_within(prefix_of(i) + path, session_->settings.float32_modules);
      });
    }
  }
  views.warn_of_those_left(dtype);
  std::vector<std::string> counters;
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto& name : low_precision_counters(*models_[i])) counters.push_back(prefix_of(i) + name);
  }
  warn_of_counters(counters, dtype);
}

ForwardCasts Initializer::forward_casts() const {
  ForwardCasts casts;
  if (!session_->enabled()) return casts;
  const auto& settings = session_->settings;
  casts.inputs = settings.properties.cast_model_type;
  casts.outputs = settings.cast_model_outputs;
  if (casts.inputs && !casts.outputs) casts.outputs = at::kFloat;  // MODEL-04
  casts.saves_float32 = casts.inputs.has_value();
  casts.session = session_;
  casts.rules = session_->cast_rules;
  return casts;
}

}  // namespace apex::amp::detail
