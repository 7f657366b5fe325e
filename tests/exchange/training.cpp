#include "tests/exchange/training.h"

#include <apex_cpp/amp.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>

#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <tuple>

namespace apex::test {
namespace {

constexpr double kFirstScale = 1024.0;  // gradients of up to 2 stay finite in float16

amp::GradScaler small_scaler() { return amp::GradScaler(c10::kCPU, kFirstScale, 2.0, 0.5, /*growth_interval=*/2); }

bool overflows_at(int step) { return step % 3 == 1; }

}  // namespace

ExchangeGradients::ExchangeGradients(const ExchangeNet& model, int steps) {
  for (int step = 0; step < steps; ++step) {
    for (const auto& [name, param] : unique_params(*model)) {
      tensors_.emplace_back(std::to_string(step) + "/" + name, at::randint(-128, 128, param.sizes(), at::kFloat) / 64);
    }
  }
}

ExchangeGradients::ExchangeGradients(const std::string& path) : tensors_(amp::detail::read_safetensors(path).tensors) {}

void ExchangeGradients::save(const std::string& path) const { amp::detail::write_safetensors(path, {tensors_, {}}); }

const at::Tensor& ExchangeGradients::at(int step, const std::string& param) const {
  for (const auto& [name, tensor] : tensors_) {
    if (name == std::to_string(step) + "/" + param) return tensor;
  }
  C10_THROW_ERROR(IndexError, "no gradient of " + param);
}

ExchangeTraining::ExchangeTraining(const ExchangePair& pair, const std::string& mode)
    : model(pair.model), optimizer(pair.make_optimizer(model)), has_amp_(mode != "plain" && mode != "scaler") {
  if (mode == "scaler") scaler.emplace(small_scaler());
  if (!has_amp_) return;
  const auto options = amp::InitializeOptions().verbosity(0).max_loss_scale(kFirstScale);
  std::tie(model, optimizer) = amp::initialize(model, optimizer, mode, options);
}

ExchangeTraining::~ExchangeTraining() {
  if (has_amp_) amp::reset();
}

// Its gradient of every parameter is exactly the one of the file, in float32 and, rounded where that is 16-bit, in the
// parameter.
at::Tensor ExchangeTraining::loss_of(const ExchangeGradients& gradients, int step, bool overflows) const {
  const amp::disable_casts casts_off;
  at::Tensor loss = at::zeros({});
  for (const auto& [name, param] : unique_params(*model)) {
    loss = loss + (param.to(at::kFloat) * gradients.at(step, name)).sum();
    if (overflows) loss = loss + param.to(at::kFloat).sum() * std::numeric_limits<float>::infinity();
  }
  return loss;
}

void ExchangeTraining::run(const ExchangeGradients& gradients, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    optimizer->zero_grad();
    if (has_amp_) {
      auto loss = loss_of(gradients, step, false);
      amp::scale_loss(loss, *optimizer).backward();
      optimizer->step();
    } else if (scaler) {
      scaler->scale(loss_of(gradients, step, overflows_at(step))).backward();
      scaler->step(*optimizer);
      scaler->update();
    } else {
      for (const auto& [name, param] : unique_params(*model))
        at::Tensor(param).mutable_grad() = gradients.at(step, name).clone();
      optimizer->step();
    }
  }
}

void ExchangeTraining::save(const std::string& path) const {
  scaler ? amp::save_for_python(path, model, optimizer, *scaler) : amp::save_for_python(path, model, optimizer);
}

std::vector<std::string> ExchangeTraining::load(const std::string& path) {
  return scaler ? amp::load_from_python(path, model, optimizer, *scaler) : amp::load_from_python(path, model, optimizer);
}

}  // namespace apex::test
