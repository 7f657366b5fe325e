#include "tests/kernels/optimizer_cases.h"

namespace kernels_test {

namespace kernels = apex::kernels;

Tensors Problem::all() {
  Tensors tensors;
  for (const Tensors* list : lists()) tensors.insert(tensors.end(), list->begin(), list->end());
  if (norms.defined()) tensors.push_back(norms);
  return tensors;
}

bool Problem::splits() const { return !models.empty() && !models.front().is_floating_point(); }

Problem Problem::copy() const {
  return {copies_of(grads),  copies_of(params), copies_of(first),
          copies_of(second), copies_of(models), norms.defined() ? norms.clone() : norms};
}

std::string Storage::name() const {
  return "grad " + name_of(grad) + ", param " + name_of(param) + ", state " + name_of(state) +
         (has_models() ? ", model " + name_of(model) : "");
}

const std::vector<Storage>& storages() {
  static const std::vector<Storage> kStorages = [] {
    std::vector<Storage> all;
    for (const auto grad : {at::kHalf, at::kBFloat16, at::kFloat}) {
      for (const auto model : {at::kDouble, at::kHalf, at::kBFloat16, at::kFloat})
        all.push_back({grad, at::kFloat, at::kFloat, model});
      for (const auto param : {at::kHalf, at::kBFloat16}) {
        for (const auto state : {at::kFloat, param}) all.push_back({grad, param, state, at::kDouble});
      }
    }
    return all;
  }();
  return kStorages;
}

namespace {

// The references follow the formulas of Apex's kernels, as apex_cpp/apex_behaviour.md states them.

Bounded coefficient(double value) { return Bounded::coefficient(value); }

// Apex's kernels get their coefficients as float32 numbers and subtract these from 1. Corrections are then computed in float64
// and rounded once.
double as_given(double value) { return static_cast<float>(value); }
Bounded complement(double value) { return 1.0f - static_cast<float>(value); }
double bias(double beta, int64_t step) { return 1 - std::pow(as_given(beta), static_cast<double>(step)); }

template <class Settings>
Settings scaled(const Settings& settings) {
  Settings result = settings;
  result.grad_scale = kGradScale;
  result.lr = kLr;
  return result;
}

kernels::StepTensors with(const at::Tensor& found_inf) {
  kernels::StepTensors tensors;
  tensors.found_inf = found_inf;
  return tensors;
}

// --- SGD

void sgd_reference(const kernels::SgdSettings& c, Elements& elements) {
  const Bounded mu = coefficient(c.momentum), undampened = complement(c.dampening), decay = coefficient(c.weight_decay);
  for (Element& e : elements) {
    Bounded g = e.grad * coefficient(kGradScale);
    if (c.weight_decay != 0 && !c.weight_decay_after_momentum) g = g + decay * e.param;
    if (c.momentum != 0) {
      e.first = c.first_run ? g : mu * e.first + undampened * g;
      g = c.nesterov ? g + mu * e.first : e.first;
    }
    if (c.weight_decay != 0 && c.weight_decay_after_momentum) g = g + decay * e.param;
    Bounded change = coefficient(kLr) * g;
    if (e.half_param) change.error += std::max((std::abs(change.value) + change.error) * 0x1p-11, 0x1p-25);
    e.param = e.param - change;
  }
}

Case sgd(const std::string& name, double momentum, double decay,
         const std::function<void(kernels::SgdSettings&)>& change = {}) {
  kernels::SgdSettings settings;
  settings.momentum = momentum;
  settings.weight_decay = decay;
  if (change) change(settings);
  return {"Sgd" + name, momentum != 0 ? size_t{1} : size_t{0},
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_sgd(p.grads, p.params, p.first, p.models, scaled(settings), with(found_inf));
          },
          [settings](Elements& elements, double) { sgd_reference(settings, elements); }};
}

// --- Adam

// The step of Adam and LAMB before it is applied.
Bounded adam_step(const kernels::MomentSettings& c, Bounded mean_weight, Bounded g, Element& e) {
  const double c1 = c.bias_correction ? bias(c.beta1, c.step) : 1, c2 = c.bias_correction ? bias(c.beta2, c.step) : 1;
  e.first = coefficient(c.beta1) * e.first + mean_weight * g;
  e.second = coefficient(c.beta2) * e.second + complement(c.beta2) * g * g;
  return (e.first / coefficient(c1)) / (sqrt(e.second) / coefficient(std::sqrt(c2)) + coefficient(c.eps));
}

Case adam(const std::string& name, bool decoupled, double decay, int64_t step, bool bias_correction) {
  kernels::AdamSettings settings;
  settings.adam_w_mode = decoupled;
  settings.weight_decay = decay;
  settings.step = step;
  settings.bias_correction = bias_correction;
  const auto reference = [settings](Elements& elements, double) {
    const Bounded decay_of = coefficient(settings.weight_decay);
    for (Element& e : elements) {
      Bounded g = e.grad * coefficient(kGradScale);
      if (settings.weight_decay != 0 && !settings.adam_w_mode) g = g + decay_of * e.param;
      Bounded u = adam_step(settings, complement(settings.beta1), g, e);
      if (settings.weight_decay != 0 && settings.adam_w_mode) u = u + decay_of * e.param;
      e.param = e.param - coefficient(kLr) * u;
    }
  };
  return {"Adam" + name, 2,
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_adam(p.grads, p.params, p.first, p.second, p.models, scaled(settings), with(found_inf));
          },
          reference};
}

// --- Adagrad

Case adagrad(const std::string& name, bool decoupled, double decay) {
  kernels::AdagradSettings settings;
  settings.adagrad_w_mode = decoupled;
  settings.weight_decay = decay;
  const auto reference = [settings](Elements& elements, double) {
    const Bounded decay_of = coefficient(settings.weight_decay);
    for (Element& e : elements) {
      Bounded g = e.grad * coefficient(kGradScale);
      if (settings.weight_decay != 0 && !settings.adagrad_w_mode) g = g + decay_of * e.param;
      e.first = e.first + g * g;
      Bounded u = g / (sqrt(e.first) + coefficient(settings.eps));
      if (settings.weight_decay != 0 && settings.adagrad_w_mode) u = u + decay_of * e.param;
      e.param = e.param - coefficient(kLr) * u;
    }
  };
  return {"Adagrad" + name, 1,
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_adagrad(p.grads, p.params, p.first, p.models, scaled(settings), with(found_inf));
          },
          reference};
}

// --- Lion

// beta1 * mean + (1 - beta1) * grad with every rounding of float32. Products of float32 values are exact in float64, and so are
// the roundings of their sums (support.h).
float rounded_mix(double beta1, const Element& e) {
  const auto grad = static_cast<float>(e.grad.value * as_given(kGradScale));
  const auto mean_part = static_cast<float>(as_given(beta1) * e.first.value);
  const auto grad_part = static_cast<float>(complement(beta1).value * static_cast<double>(grad));
  return static_cast<float>(static_cast<double>(mean_part) + static_cast<double>(grad_part));
}

void lion_reference(const kernels::LionSettings& c, Elements& elements) {
  const Bounded decay = coefficient(c.weight_decay);
  for (Element& e : elements) {
    const Bounded g = e.grad * coefficient(kGradScale);
    Bounded u = sign(coefficient(c.beta1) * e.first + complement(c.beta1) * g, rounded_mix(c.beta1, e));
    if (c.weight_decay != 0) u = u + decay * e.param;
    e.param = e.param - coefficient(kLr) * u;
    e.first = coefficient(c.beta2) * e.first + complement(c.beta2) * g;
  }
}

Case lion(const std::string& name, double decay, double beta1) {
  kernels::LionSettings settings;
  settings.weight_decay = decay;
  settings.beta1 = beta1;
  return {"Lion" + name,
          1,
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_lion(p.grads, p.params, p.first, p.models, scaled(settings), with(found_inf));
          },
          [settings](Elements& elements, double) { lion_reference(settings, elements); },
          /*has_norms=*/false,
          /*writes_grads=*/false,
          /*signed_state=*/true};
}

// --- Schedule-free AdamW. The first state is z.

Bounded between(const Bounded& from, const Bounded& to, double weight) { return from + coefficient(weight) * (to - from); }

void schedule_free_reference(const kernels::ScheduleFreeSettings& c, Elements& elements) {
  const double y_rate = kLr * (c.beta1 * (1 - c.average_weight) - 1);
  for (Element& e : elements) {
    const Bounded g = e.grad * coefficient(kGradScale);
    e.second = coefficient(c.beta2) * e.second + complement(c.beta2) * g * g;
    Bounded u = g / (sqrt(e.second) / coefficient(std::sqrt(bias(c.beta2, c.step))) + coefficient(c.eps));
    if (c.weight_decay != 0) u = u + coefficient(c.weight_decay) * e.param;
    e.param = between(e.param, e.first, c.average_weight) + coefficient(y_rate) * u;
    e.first = e.first - coefficient(kLr) * u;
  }
}

Case schedule_free(const std::string& name, double decay, int64_t step, double average_weight) {
  kernels::ScheduleFreeSettings settings;
  settings.weight_decay = decay;
  settings.step = step;
  settings.average_weight = average_weight;
  return {"ScheduleFree" + name,
          2,
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_schedule_free_adamw(p.grads, p.params, p.first, p.second, p.models, scaled(settings),
                                                      with(found_inf));
          },
          [settings](Elements& elements, double) { schedule_free_reference(settings, elements); },
          /*has_norms=*/false,
          /*writes_grads=*/false,
          /*signed_state=*/true};
}

Case lerp(const std::string& name, double weight) {
  kernels::LerpSettings settings;
  settings.weight = weight;
  return {"Lerp" + name,
          1,
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_lerp(p.first, p.params, p.models, settings, with(found_inf));
          },
          [settings](Elements& elements, double) {
            for (Element& e : elements) e.param = between(e.param, e.first, settings.weight);
          },
          /*has_norms=*/false,
          /*writes_grads=*/false,
          /*signed_state=*/true};
}

// --- Norms of whole tensors. A float32 norm is within 2.5 roundings (rules/rule.h), and its elements have one more.

template <class ValueOf>
Bounded l2_of(const Elements& elements, const ValueOf& value_of) {
  double squares = 0, errors = 0;
  for (const Element& e : elements) {
    const Bounded value = value_of(e);
    squares += value.value * value.value;
    errors += value.error * value.error;
  }
  return {std::sqrt(squares), std::sqrt(errors) + 4 * 0x1p-24 * std::sqrt(squares)};
}

Bounded largest_of(const Elements& elements) {
  Bounded largest;
  for (const Element& e : elements) {
    if (std::abs(e.grad.value) > largest.value) largest = std::abs(e.grad.value);
  }
  return largest * coefficient(kGradScale);
}

// --- NovoGrad

Bounded novograd_norm(const kernels::NovoGradSettings& c, const Elements& elements, double running) {
  if (c.norm_type == kernels::NormType::inf) {
    const Bounded now = largest_of(elements);
    return c.first_run ? now : coefficient(c.beta2) * running + complement(c.beta2) * now;
  }
  const Bounded now = l2_of(elements, [](const Element& e) { return e.grad * coefficient(kGradScale); });
  if (c.first_run) return now;
  return sqrt(coefficient(c.beta2) * running * running + complement(c.beta2) * now * now);
}

void novograd_reference(const kernels::NovoGradSettings& c, Elements& elements, double running) {
  const Bounded decay = coefficient(c.weight_decay), weight = c.grad_averaging ? complement(c.beta1) : Bounded(1);
  const double c1 = c.bias_correction ? bias(c.beta1, c.step) : 1, c2 = c.bias_correction ? bias(c.beta2, c.step) : 1;
  const Bounded d = novograd_norm(c, elements, running) / coefficient(std::sqrt(c2)) + coefficient(c.eps);
  for (Element& e : elements) {
    const Bounded g = e.grad * coefficient(kGradScale);
    if (c.reg_inside_moment) {
      e.first = coefficient(c.beta1) * e.first + weight * (g / d + decay * e.param);
      e.param = e.param - coefficient(kLr) * (e.first / coefficient(c1));
    } else {
      e.first = coefficient(c.beta1) * e.first + weight * g;
      e.param = e.param - coefficient(kLr) * (e.first / coefficient(c1) / d + decay * e.param);
    }
  }
}

Case novograd(const std::string& name, double decay, const std::function<void(kernels::NovoGradSettings&)>& change = {}) {
  kernels::NovoGradSettings settings;
  settings.weight_decay = decay;
  settings.step = 3;
  if (change) change(settings);
  return {"NovoGrad" + name, 1,
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_novograd(p.grads, p.params, p.first, p.norms, p.models, scaled(settings), with(found_inf));
          },
          [settings](Elements& elements, double norm) { novograd_reference(settings, elements, norm); },
          /*has_norms=*/true};
}

// --- LAMB

constexpr double kGlobalNorm = 3.7;

void lamb_reference(const kernels::LambSettings& c, Elements& elements) {
  const Bounded decay = coefficient(c.weight_decay);
  const double clip = c.max_grad_norm > 0 && kGlobalNorm > c.max_grad_norm ? kGlobalNorm / c.max_grad_norm : 1;
  const Bounded param_norm = l2_of(elements, [](const Element& e) { return e.param; });
  for (Element& e : elements) {
    Bounded g = e.grad * coefficient(kGradScale) / coefficient(clip);
    if (c.weight_decay != 0 && !c.adam_w_mode) g = g + decay * e.param;
    e.grad = adam_step(c, c.grad_averaging ? complement(c.beta1) : Bounded(1), g, e);
    if (c.weight_decay != 0 && c.adam_w_mode) e.grad = e.grad + decay * e.param;
  }
  const Bounded update_norm = l2_of(elements, [](const Element& e) { return e.grad; });
  const bool adapts = (c.use_nvlamb || c.weight_decay != 0) && param_norm.value != 0 && update_norm.value != 0;
  const Bounded rate = adapts ? coefficient(kLr) * param_norm / update_norm : coefficient(kLr);
  for (Element& e : elements) e.param = e.param - rate * e.grad;
}

void lamb_step(const kernels::LambSettings& settings, Problem& p, const at::Tensor& found_inf) {
  const c10::Device device = p.params.empty() ? c10::Device(at::kCPU) : p.params[0].device();
  const at::Tensor global_norm = at::full({1}, kGlobalNorm, at::TensorOptions().dtype(at::kFloat).device(device));
  if (p.splits()) {
    return kernels::multi_tensor_split_lamb(p.grads, p.params, p.first, p.second, p.models, global_norm, scaled(settings),
                                            with(found_inf));
  }
  Tensors updates;
  for (const at::Tensor& param : p.params) updates.push_back(at::empty_like(param, at::kFloat));
  const auto norms = kernels::multi_tensor_lamb_stage_1(p.grads, p.params, p.first, p.second, updates, global_norm,
                                                        scaled(settings), with(found_inf));
  kernels::multi_tensor_lamb_stage_2(updates, p.params, p.models, norms, scaled(settings), with(found_inf));
}

Case lamb(const std::string& name, double decay, const std::function<void(kernels::LambSettings&)>& change = {}) {
  kernels::LambSettings settings;
  settings.weight_decay = decay;
  settings.step = 2;
  if (change) change(settings);
  return {"Lamb" + name, 2, [settings](Problem& p, const at::Tensor& found_inf) { lamb_step(settings, p, found_inf); },
          [settings](Elements& elements, double) { lamb_reference(settings, elements); }};
}

// --- LARC: changes gradients and has neither state nor copies.

void larc_reference(const kernels::LarcSettings& c, Elements& elements) {
  const Bounded param_norm = l2_of(elements, [](const Element& e) { return e.param; });
  const Bounded grad_norm = l2_of(elements, [](const Element& e) { return e.grad * coefficient(kGradScale); });
  const Bounded decay = coefficient(c.weight_decay);
  const bool adapts = param_norm.value != 0 && grad_norm.value != 0;
  Bounded rate = coefficient(c.trust_coefficient) * param_norm / (grad_norm + param_norm * decay + coefficient(c.eps));
  if (c.clip) rate = rate / coefficient(kLr);
  if (c.clip && rate.value > 1) rate = 1.0;
  for (Element& e : elements) {
    e.grad = e.grad * coefficient(kGradScale);
    if (adapts) e.grad = (e.grad + decay * e.param) * rate;
  }
}

Case larc(const std::string& name, double decay, double trust, bool clip) {
  kernels::LarcSettings settings;
  settings.weight_decay = decay;
  settings.trust_coefficient = trust;
  settings.clip = clip;
  return {"Larc" + name,
          0,
          [settings](Problem& p, const at::Tensor& found_inf) {
            kernels::multi_tensor_larc(p.grads, p.params, scaled(settings), with(found_inf));
          },
          [settings](Elements& elements, double) { larc_reference(settings, elements); },
          /*has_norms=*/false,
          /*writes_grads=*/true};
}

// --- LARS

// The norms, computed by ATen in float64 and rounded to float32, without waiting. The reference's bounds contain this rounding.
at::Tensor norms_of(const Tensors& list, double scale) {
  if (list.empty()) return at::zeros({0});
  Tensors norms;
  for (const at::Tensor& tensor : list) norms.push_back(tensor.to(at::kDouble).mul(scale).norm());
  return at::stack(norms).to(at::kFloat);
}

void lars_reference(const kernels::LarsSettings& c, Elements& elements) {
  const Bounded param_norm = l2_of(elements, [](const Element& e) { return e.param; });
  const Bounded grad_norm = l2_of(elements, [](const Element& e) { return e.grad * coefficient(kGradScale); });
  const Bounded decay = coefficient(c.weight_decay);
  Bounded rate = coefficient(kLr);
  if (c.adapts && param_norm.value != 0 && grad_norm.value != 0)
    rate = rate * coefficient(c.trust_coefficient) * param_norm / (grad_norm + decay * param_norm + coefficient(c.eps));
  for (Element& e : elements) {
    const Bounded change = rate * (e.grad * coefficient(kGradScale) + decay * e.param);
    e.first = c.momentum != 0 ? coefficient(c.momentum) * e.first - change : Bounded(0) - change;
    e.param = e.param + (c.nesterov ? coefficient(c.momentum) * e.first - change : e.first);
  }
}

// `given`: the caller computes the norms.
Case lars(const std::string& name, double momentum, double decay, bool adapts = true, bool nesterov = false,
          bool given = false) {
  kernels::LarsSettings settings;
  settings.momentum = momentum;
  settings.weight_decay = decay;
  settings.trust_coefficient = 0.5;
  settings.eps = 0.01;
  settings.adapts = adapts;
  settings.nesterov = nesterov;
  return {"Lars" + name,
          1,
          [=](Problem& p, const at::Tensor& found_inf) {
            kernels::LarsNorms norms;
            if (given) norms = {norms_of(p.grads, kGradScale), norms_of(p.params, 1)};
            kernels::multi_tensor_lars(p.grads, p.params, p.first, p.models, norms, scaled(settings), with(found_inf));
          },
          [settings](Elements& elements, double) { lars_reference(settings, elements); },
          /*has_norms=*/false,
          /*writes_grads=*/false,
          /*signed_state=*/true};
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      sgd("", 0, 0),
      sgd("Decay", 0, 0.1),
      sgd("Momentum", 0.9, 0),
      sgd("MomentumDecayDampening", 0.9, 0.1, [](auto& c) { c.dampening = 0.3; }),
      sgd("Nesterov", 0.9, 0.1, [](auto& c) { c.nesterov = true; }),
      sgd("FirstRun", 0.9, 0.1, [](auto& c) { c.first_run = true; }),
      sgd("DecayAfterMomentum", 0.9, 0.1, [](auto& c) { c.weight_decay_after_momentum = true; }),
      adam("", false, 0, 1, true),
      adam("Decay", false, 0.1, 7, true),
      adam("W", true, 0.1, 7, true),
      adam("WithoutBiasCorrection", true, 0.1, 7, false),
      adagrad("", false, 0),
      adagrad("Decay", false, 0.1),
      adagrad("W", true, 0.1),
      novograd("", 0.1),
      novograd("InsideMoment", 0.1, [](auto& c) { c.reg_inside_moment = true; }),
      novograd("WithoutAveraging", 0, [](auto& c) { c.grad_averaging = false; }),
      novograd("MaxNorm", 0.1, [](auto& c) { c.norm_type = kernels::NormType::inf; }),
      novograd("FirstRun", 0.1, [](auto& c) { c.first_run = true; }),
      lamb("", 0.1),
      lamb("Decay", 0.1, [](auto& c) { c.adam_w_mode = false; }),
      lamb("WithoutDecay", 0),
      lamb("Nv", 0, [](auto& c) { c.use_nvlamb = true; }),
      lamb("WithoutAveragingOrClipping", 0.1, [](auto& c) { c.grad_averaging = false, c.max_grad_norm = 0; }),
      larc("", 0.1, 0.02, true),
      larc("Clipped", 0.1, 40, true),
      larc("Unclipped", 0, 0.02, false),
      lion("", 0, 0.9),
      lion("Decay", 0.1, 0.9),
      lion("WithoutTheMean", 0.1, 0),
      lars("", 0.9, 0),
      lars("Decay", 0.9, 0.1),
      lars("WithoutMomentum", 0, 0.1),
      lars("Nesterov", 0.9, 0.1, /*adapts=*/true, /*nesterov=*/true),
      lars("WithoutNorms", 0.9, 0.1, /*adapts=*/false),
      schedule_free("", 0, 1, /*average_weight=*/1),
      schedule_free("Decay", 0.1, 7, /*average_weight=*/0.1),
      lerp("ToX", 1 - 1 / 0.9),
      lerp("ToY", 1 - 0.9),
      lars("GivenNorms", 0.9, 0.1, /*adapts=*/true, /*nesterov=*/false, /*given=*/true),
  };
  return kCases;
}

namespace {

// Means of both signs are of the size of scaled gradients, so that both count in their sum.
at::Tensor first_state(const Case& update, at::ScalarType dtype, int64_t size, int64_t offset) {
  return update.signed_state ? random_values(size, dtype, offset, /*spread=*/0.1) : random_values(size, dtype, offset).abs_();
}

}  // namespace

Problem make_problem(const Case& update, const Storage& storage, const std::vector<int64_t>& sizes, int64_t offset) {
  Problem problem;
  for (const int64_t size : sizes) {
    problem.grads.push_back(random_values(size, storage.grad, offset, /*spread=*/8));
    problem.params.push_back(random_values(size, storage.param, offset));
    if (update.states > 0) problem.first.push_back(first_state(update, storage.state, size, offset));
    if (update.states > 1) problem.second.push_back(random_values(size, storage.state, offset).abs_());
    if (storage.has_models() && !update.writes_grads)
      problem.models.push_back(at::full({size + offset}, 7, storage.model).narrow(0, offset, size));
  }
  if (update.has_norms) problem.norms = random_values(static_cast<int64_t>(sizes.size()), at::kFloat).abs_().add_(0.5);
  return problem;
}

Elements elements_of(const Problem& problem, size_t index) {
  Elements elements(static_cast<size_t>(problem.grads[index].numel()));
  const auto fill = [&](const Tensors& list, Bounded Element::*member) {
    if (list.empty()) return;
    const at::Tensor values = list[index].to(at::kDouble);
    for (size_t i = 0; i < elements.size(); ++i) elements[i].*member = values.const_data_ptr<double>()[i];
  };
  fill(problem.grads, &Element::grad);
  fill(problem.params, &Element::param);
  fill(problem.first, &Element::first);
  fill(problem.second, &Element::second);
  for (Element& element : elements) element.half_param = problem.params[index].scalar_type() == at::kHalf;
  return elements;
}

}  // namespace kernels_test
