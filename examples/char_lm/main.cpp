// A small GPT that learns to write from one text, character by character. char_lm --help lists the options.
#include <apex_cpp/amp.h>
#include <apex_cpp/amp/comparison.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "gpt.h"
#include "options.h"
#include "text.h"

namespace {

namespace amp = apex::amp;

/// A level by its name, or from its YAML file.
amp::OptLevel level_of(const Options& options) {
  const bool is_file = options.opt_level.find(".yaml") != std::string::npos;
  return is_file ? amp::OptLevel::from_yaml_file(options.opt_level) : amp::OptLevel(options.opt_level);
}

/// Biases and norms are not decayed.
template <class Optimizer, class AdamOptions>
std::unique_ptr<torch::optim::Optimizer> make_adam(const GPT& model, const AdamOptions& decayed) {
  std::vector<torch::Tensor> matrices, vectors;
  for (const auto& parameter : model->parameters()) (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  const auto plain = AdamOptions(decayed).weight_decay(0);
  const std::vector<torch::optim::OptimizerParamGroup> groups = {{matrices, std::make_unique<AdamOptions>(decayed)},
                                                                 {vectors, std::make_unique<AdamOptions>(plain)}};
  return std::make_unique<Optimizer>(groups, decayed);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const GPT& model, const Options& options) {
  using namespace apex::optimizers;
  if (options.master_storage.empty() && options.moment_storage.empty()) {
    const auto adam = torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99}).weight_decay(options.weight_decay);
    return make_adam<torch::optim::AdamW>(model, adam);
  }
  auto adam = FusedAdamOptions(options.lr).betas({0.9, 0.99}).weight_decay(options.weight_decay);
  if (!options.master_storage.empty()) adam.master_storage(master_storage_named(options.master_storage));
  if (!options.moment_storage.empty()) adam.moment_storage(moment_storage_named(options.moment_storage));
  return make_adam<FusedAdam>(model, adam);
}

/// Up in a line, down in half a cosine.
double learning_rate(int64_t step, const Options& options) {
  if (step < options.warmup) return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  const double share = static_cast<double>(step - options.warmup) / static_cast<double>(options.steps - options.warmup);
  return options.min_lr + (options.lr - options.min_lr) * 0.5 * (1 + std::cos(M_PI * share));
}

/// Mean cross entropy of the next character, in nats.
template <class Net>
torch::Tensor loss_of(Net& net, const Sequences& sequences, const Options& options) {
  const torch::Tensor logits = net->forward(sequences.characters.to(options.device));
  return torch::cross_entropy_loss(logits.flatten(0, 1), sequences.next.to(options.device).flatten());
}

template <class Net>
double validate(Net& net, const Text& text, const Options& options) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const Sequences all = all_sequences(text.validation(), options.context);
  double total = 0;
  for (const auto& rows : torch::arange(all.next.size(0)).split(options.batch)) {
    const Sequences part{all.characters.index_select(0, rows), all.next.index_select(0, rows)};
    const torch::Tensor loss = loss_of(net, part, options);
    total += loss.template item<double>() * static_cast<double>(rows.numel());
  }
  net->train();
  return total / static_cast<double>(all.next.size(0));
}

template <class Net>
std::string write(Net& net, const Text& text, const Options& options) {
  const torch::NoGradGuard no_grad;
  net->eval();
  std::string written;
  torch::Tensor seen = text.train().narrow(0, 0, options.context).unsqueeze(0).to(options.device);  // how the text begins
  for (int64_t i = 0; i < options.sample; ++i) {
    const torch::Tensor logits = net->forward(seen).select(1, -1).to(torch::kFloat) / options.temperature;
    const torch::Tensor next = torch::multinomial(torch::softmax(logits, -1), 1);
    written += text.character(next.item().toLong());
    seen = torch::cat({seen.narrow(1, 1, options.context - 1), next}, 1);
  }
  return written;
}

/// Adds up the gradients of a step's passes. Returns the mean of their losses.
template <class Net, class Optimizer>
double accumulate(Net& net, Optimizer& opt, const Text& text, const Options& options) {
  double total = 0;
  for (int64_t pass = 0; pass < options.accumulation; ++pass) {
    const auto batch = random_sequences(text.train(), options.batch, options.context);
    const auto loss = loss_of(net, batch, options) / static_cast<double>(options.accumulation);
    const bool last = pass + 1 == options.accumulation;
    auto scaled_loss = amp::scale_loss(loss, opt, amp::ScaleLossOptions().delay_unscale(!last));
    scaled_loss.backward();
    total += loss.item().toDouble();
  }
  return total;
}

void train(const Options& options) {
  const Text text(options.text, options.context);
  std::optional<amp::ComparisonRun> run;  // made before the model, since it counts the model's memory
  if (!options.record.empty()) run.emplace(options.steps);
  GPT model(text.vocabulary(), options.context, options.width, options.heads, options.layers, options.dropout);
  model->to(torch::Device(options.device));
  auto optimizer = make_optimizer(model, options);
  auto [net, opt] = amp::initialize(model, optimizer, level_of(options));

  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  std::printf("%zd characters for training, %zd different ones; %zd parameters\n", text.train().numel(), text.vocabulary(),
              parameters);
  std::printf("step 0: validation %.4f\n", validate(net, text, options));
  for (int64_t step = 0; step < options.steps; ++step) {
    if (run) run->next();
    for (auto& group : opt->param_groups()) group.options().set_lr(learning_rate(step, options));
    opt->zero_grad();  // once a step: the passes add up
    const double train_loss = accumulate(net, *opt, text, options);
    const double norm = amp::clip_grad_norm_(*opt, options.clip);
    opt->step();
    if (run) run->loss(train_loss);
    if ((step + 1) % options.report == 0 || step + 1 == options.steps) {
      std::printf("step %zd: train %.4f, validation %.4f, lr %.2e, gradient norm %.3f%s\n", step + 1, train_loss,
                  validate(net, text, options), opt->param_groups().front().options().get_lr(), norm,
                  amp::step_result(*opt).skipped ? " (skipped)" : "");
      std::fflush(stdout);
    }
  }
  if (run) {
    run->next();  // ends the last step
    run->test_loss(validate(net, text, options));
    return run->write(options.record);
  }
  std::printf("---- a sample of %zd characters:\n%s\n", options.sample, write(net, text, options).c_str());
  amp::save_safetensors("char_lm.safetensors", net);
}

}  // namespace

int main(int argc, char** argv) try {
  const auto options = read_options(argc, argv);
  torch::manual_seed(options.seed);
  train(options);
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
