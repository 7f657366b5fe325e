// The calls of the error table. Their text is prose, so each is written out here under its id.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <apex_cpp/amp.h>
#include <apex_cpp/fp16_utils.h>
#include <apex_cpp/optimizers.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <type_traits>

#include "kernels/multi_tensor.h"
#include "tests/oracle/features.h"
#include "tests/oracle/session/initialize_args.h"
#include "tests/oracle/tables/tables.h"
#include "tests/oracle/verdict/exceptions.h"
#include "tests/oracle/verdict/o1_session.h"

namespace oracle {
namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;
namespace optimizers = apex::optimizers;
namespace fp16_utils = apex::fp16_utils;
using ErrorCall = std::function<void()>;

torch::optim::SGD sgd_over(nn::Linear& net) { return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1)); }

// amp::initialize of a small model with these arguments, given as a case would give them.
ErrorCall initialize_with(const std::string& args) {
  return [args] {
    const Json json = Json::parse(args, "arguments");
    nn::Linear net(3, 2);
    auto optimizer = sgd_over(net);
    (void)amp::initialize(net, optimizer, opt_level_arg(json), initialize_options(json));
  };
}

void initialize_half_model(const std::string& level) {
  nn::Linear net(3, 2);
  net->to(at::kHalf);
  auto optimizer = sgd_over(net);
  (void)amp::initialize(net, optimizer, amp::OptLevel(level), amp::InitializeOptions().verbosity(0));
}

void initialize_half_buffer() {
  nn::Linear net(3, 2);
  net->register_buffer("half", at::zeros({2}, at::kHalf));
  auto optimizer = sgd_over(net);
  (void)amp::initialize(net, optimizer, amp::OptLevel("O2"), amp::InitializeOptions().verbosity(0));
}

// Runs `action` with a model and an optimizer initialized at O2.
template <class Action>
ErrorCall at_O2(Action action) {
  return [action] {
    nn::Linear net(3, 2);
    auto optimizer = sgd_over(net);
    auto [model, handle] = amp::initialize(net, optimizer, amp::OptLevel("O2"), amp::InitializeOptions().verbosity(0));
    const at::Tensor loss = model->forward(at::ones({1, 3})).sum();
    action(loss, handle);
  };
}

template <class Handle>
void initialize_again(Handle& handle) {
  nn::Linear other(3, 2);
  (void)amp::initialize(other, handle, amp::OptLevel("O2"), amp::InitializeOptions().verbosity(0));
}

void scale_loss_before_initialize() {
  nn::Linear net(3, 2);
  auto optimizer = sgd_over(net);
  (void)amp::scale_loss(net->forward(at::ones({1, 3})).sum(), optimizer);
}

void add_double_group(torch::optim::Optimizer& optimizer, const at::Tensor& loss) {
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({at::ones({2}, at::kDouble).requires_grad_()}));
  amp::scale_loss(loss, optimizer).backward();
}

void load_unexpected_key() {
  amp::StateDict state = amp::state_dict();
  state.insert("something_else", {});
  amp::load_state_dict(state);
}

void scale_lists_of_different_lengths() {
  const at::Tensor flag = at::zeros({1}, at::kInt);
  apex::kernels::multi_tensor_scale(flag, {at::ones({2}), at::ones({2})}, {at::ones({2})}, 1.0);
}

void initialize_mixed_model() {
  nn::Sequential net(nn::Linear(3, 2), nn::Linear(2, 2));
  net[1]->to(at::kHalf);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  (void)amp::initialize(net, optimizer, "O1", amp::InitializeOptions().verbosity(0));
}

void step_with_closure_after_overflow() {
  nn::Linear net(3, 2);
  auto optimizer = sgd_over(net);
  auto [model, handle] = amp::initialize(net, optimizer, "O1", amp::InitializeOptions().verbosity(0));
  const at::Tensor loss = model->forward(at::ones({1, 3})).sum() * INFINITY;
  amp::scale_loss(loss, handle).backward();
  handle.step([&] { return loss; });
}

ErrorCall at_O1_call(const ErrorCall& action) {
  return [action] { at_O1(action); };
}

// A step of an optimizer over one parameter of this dtype.
template <class Opt, class Options>
ErrorCall step_of(const Options& options, at::ScalarType dtype = at::kFloat) {
  return [=] {
    const at::Tensor param = at::ones({3}, dtype).requires_grad_();
    param.mutable_grad() = at::ones({3}, dtype);
    Opt(std::vector<at::Tensor>{param}, options).step();
  };
}

void initialize_novograd_at_O1() {
  nn::Linear net(3, 2);
  optimizers::FusedNovoGrad optimizer(net->parameters());
  (void)amp::initialize(net, optimizer, "O1", amp::InitializeOptions().verbosity(0));
}

void initialize_novograd_at_O2() {
  nn::Linear net(3, 2);
  optimizers::FusedNovoGrad optimizer(net->parameters());
  (void)amp::initialize(net, optimizer, "O2", amp::InitializeOptions().verbosity(0));
}

// ---- FP16_Optimizer and the interface from before initialize

ErrorCall with_fp16_optimizer(const std::function<void(nn::Linear&, fp16_utils::FP16_Optimizer&)>& action) {
  return [action] {
    nn::Linear net(3, 2), wrapped(3, 2);
    wrapped->to(at::kHalf);
    auto optimizer = sgd_over(wrapped);
    fp16_utils::FP16_Optimizer fp16(optimizer, fp16_utils::FP16_OptimizerOptions().verbose(false));
    action(net, fp16);
  };
}

void initialize_fp16_optimizer(nn::Linear& net, fp16_utils::FP16_Optimizer& optimizer) {
  (void)amp::initialize(net, optimizer, "O2");
}

void initialize_fp16_optimizers(nn::Linear& net, fp16_utils::FP16_Optimizer& optimizer) {
  std::vector<fp16_utils::FP16_Optimizer*> list = {&optimizer};
  (void)amp::initialize(net, list, "O2");
}

void make_fp16_optimizer_of_double() {
  nn::Linear net(3, 2);
  net->to(at::kDouble);
  auto optimizer = sgd_over(net);
  const fp16_utils::FP16_Optimizer fp16(optimizer);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
void use_old_handle() {
  auto handle = amp::init();
  (void)handle.scale_loss(at::ones({}));
}
#pragma GCC diagnostic pop

// ---- what Python rejects when it runs and C++ means, or rejects when it is compiled

// A list of models or optimizers is a std::tie in C++.
void initialize_ties() {
  nn::Linear first(3, 2), second(3, 2);
  auto optimizer = sgd_over(first), other = sgd_over(second);
  (void)amp::initialize(std::tie(first, second), std::tie(optimizer, other), "O2", amp::InitializeOptions().verbosity(0));
}

// Parallelism is a function over the model that initialize returned.
void initialize_then_data_parallel() {
  nn::Linear net(3, 2);
  auto optimizer = sgd_over(net);
  auto [model, handle] = amp::initialize(net, optimizer, "O2", amp::InitializeOptions().verbosity(0));
  (void)torch::nn::parallel::data_parallel(model, at::ones({1, 3}), std::vector<c10::Device>{at::kCPU});
}

void add_group_in_a_set() {
  if (!std::is_constructible_v<torch::optim::OptimizerParamGroup, std::set<at::Tensor>>) throw RejectedWhenCompiled();
}

void step_adam_with_a_scale() {
  if (!std::is_invocable_v<decltype(&optimizers::FusedAdam::step), optimizers::FusedAdam&, double>)
    throw RejectedWhenCompiled();
}

void scale_empty_lists() { apex::kernels::multi_tensor_scale(at::zeros({1}, at::kInt), {}, {}, 1.0); }

at::Tensor probabilities(at::ScalarType type) { return at::full({3}, 0.5, type); }

// Calls by the table's ids.
const std::map<std::string, ErrorCall>& calls() {
  static const std::map<std::string, ErrorCall> kCalls = {
      {"opt_level_zero", initialize_with(R"({"opt_level": "00"})")},
      {"o1_cast_model_type", initialize_with(R"({"opt_level": "O1", "cast_model_type": "float16"})")},
      {"o1_keep_bn", initialize_with(R"({"opt_level": "O1", "keep_batchnorm_fp32": true})")},
      {"o1_master_weights", initialize_with(R"({"opt_level": "O1", "master_weights": true})")},
      {"o2_patch", initialize_with(R"({"opt_level": "O2", "patch_torch_functions": true})")},
      {"o2_patch_false_ok", initialize_with(R"({"opt_level": "O2", "patch_torch_functions": false})")},
      {"keep_bn_bad_string", initialize_with(R"({"opt_level": "O2", "keep_batchnorm_fp32": "yes"})")},
      {"loss_scale_bad_string", initialize_with(R"({"opt_level": "O2", "loss_scale": "big"})")},
      {"loss_scale_string_ok", initialize_with(R"({"opt_level": "O2", "loss_scale": "64"})")},
      {"half_model_O0", [] { initialize_half_model("O0"); }},
      {"half_model_O2", [] { initialize_half_model("O2"); }},
      {"half_buffer", initialize_half_buffer},
      {"optimizer_twice", at_O2([](const at::Tensor&, auto& handle) { initialize_again(handle); })},
      {"scale_loss_before_init", scale_loss_before_initialize},
      {"scale_loss_loss_id_range", at_O2([](const at::Tensor& loss, auto& handle) { (void)amp::scale_loss(loss, handle, 1); })},
      {"scale_loss_foreign_optimizer_O2", at_O2([](const at::Tensor& loss, auto&) {
         nn::Linear other(3, 2);
         auto foreign = sgd_over(other);
         (void)amp::scale_loss(loss, foreign);
       })},
      {"step_closure_O2", at_O2([](const at::Tensor& loss, auto& handle) { handle.step([&] { return loss; }); })},
      {"state_dict_before_init", [] { (void)amp::state_dict(); }},
      {"load_state_unexpected", at_O2([](const at::Tensor&, auto&) { load_unexpected_key(); })},
      {"add_group_double", at_O2([](const at::Tensor& loss, auto& handle) { add_double_group(handle, loss); })},
      {"mt_size_mismatch", scale_lists_of_different_lengths},
      {"mixed_model_O1", initialize_mixed_model},
      {"skip_closure_O1", step_with_closure_after_overflow},
      {"models_not_module", initialize_ties},
      {"optimizers_tuple", initialize_ties},
      {"add_group_set", add_group_in_a_set},
      {"data_parallel", initialize_then_data_parallel},
      {"old_handle_scale_loss", use_old_handle},
      {"zero_grad_argument_O2", at_O2([](const at::Tensor&, auto& handle) { handle.zero_grad(/*set_to_none=*/true); })},
      {"mt_empty_list", scale_empty_lists},
      {"fp16_optimizer_passed_single", with_fp16_optimizer(initialize_fp16_optimizer)},
      {"fp16_optimizer_passed_list", with_fp16_optimizer(initialize_fp16_optimizers)},
      {"fp16_optimizer_double", make_fp16_optimizer_of_double},
      {"novograd_O2", initialize_novograd_at_O2},
      {"adam_old_arguments", step_adam_with_a_scale},
      {"novograd_O1_ok", initialize_novograd_at_O1},
      {"novograd_bad_norm", step_of<optimizers::FusedNovoGrad>(optimizers::FusedNovoGradOptions().norm_type(1))},
      {"adam_amsgrad", step_of<optimizers::FusedAdam>(optimizers::FusedAdamOptions().amsgrad(true))},
      {"adam_master_not_capturable", step_of<optimizers::FusedAdam>(optimizers::FusedAdamOptions().master_weights(true))},
      {"fusedadam_double", step_of<optimizers::FusedAdam>(optimizers::FusedAdamOptions(), at::kDouble)},
      {"fusedlamb_double", step_of<optimizers::FusedLAMB>(optimizers::FusedLAMBOptions(), at::kDouble)},
      {"sgd_bad_lr", step_of<optimizers::FusedSGD>(optimizers::FusedSGDOptions(-1))},
      {"sgd_nesterov_no_momentum", step_of<optimizers::FusedSGD>(optimizers::FusedSGDOptions(0.1).nesterov(true))},
      {"bce_banned", at_O1_call([] { (void)at::binary_cross_entropy(probabilities(at::kHalf), probabilities(at::kHalf)); })},
      {"bce_float_ok",
       at_O1_call([] { (void)at::binary_cross_entropy(probabilities(at::kFloat), probabilities(at::kFloat)); })},
      {"inplace_exp_half", at_O1_call([] { probabilities(at::kHalf).exp_(); })},
      {"add_half_double", at_O1_call([] { (void)(probabilities(at::kHalf) + probabilities(at::kDouble)); })},
      {"register_missing", [] { amp::register_half_function("aten::no_such_function"); }}};
  return kCalls;
}

// The exception that a row expects, or what the repair file has in its place.
const Json* expected_exception(const Json& row, Report& report) {
  const Json* recorded = row.find("exception");
  const Repair* repair = report.repairs().find(
      "calls", {{"call", row.at("call").as_string()}, {"exception", recorded ? recorded->text() : "null"}});
  if (!repair) return recorded;
  report.repaired(*repair);
  return &repair->expect;
}

// The words that a message of this meaning must hold: gists.json.
const std::vector<Json>& words_of_gist(const std::string& gist) {
  static const Json kGists = Json::parse_file(ORACLE_GISTS);
  const Json* words = kGists.find(gist);
  if (!words) throw NeedsFeature("words for an error that means '" + gist + "'");
  return words->items();
}

void check_gist(Report& report, const std::vector<Json>& words, const std::string& message) {
  for (const Json& word : words) {
    report.check(message.find(word.as_string()) != std::string::npos, "message", "the word '" + word.as_string() + "'",
                 message);
  }
}

void play_row(const Json& row, Report& report) {
  require_known(row, {"id", "call", "exception", "gist"}, "a row of errors");
  const auto call = calls().find(row.at("id").as_string());
  if (call == calls().end()) throw NeedsFeature("the call '" + row.at("call").as_string() + "'");
  const auto& words = words_of_gist(row.at("gist").as_string());
  amp::reset();
  const auto message = check_exception(report, expected_exception(row, report), call->second);
  if (message) check_gist(report, words, *message);
  amp::reset();
}

}  // namespace

void replay_error_table(const Json& table, Report& report) {
  for (const Json& row : table.at("cases").items()) {
    play(report, row.at("id").as_string(), "errors", [&] { play_row(row, report); });
  }
}

}  // namespace oracle
