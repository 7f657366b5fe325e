#include "tests/checkpoint/resume/training.h"

#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/optimizers.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using Maker = std::function<OptimizerPtr(const Groups&)>;

constexpr double kEps = 1e-3;  // representable in float16

template <class Optimizer, class Options>
Maker maker(const Options& options) {
  return [options](const Groups& groups) -> OptimizerPtr {
    auto optimizer = std::make_unique<Optimizer>(groups, options);
    if constexpr (std::is_same_v<Optimizer, optimizers::FusedScheduleFreeAdamW>) optimizer->train();
    return optimizer;
  };
}

const std::map<std::string, Maker>& makers() {
  using namespace torch::optim;
  using namespace apex::optimizers;
  static const std::map<std::string, Maker> all = {
      {"SGD", maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))},
      {"Adam", maker<torch::optim::Adam>(AdamOptions(0.01).eps(kEps))},
      {"AdamW", maker<torch::optim::AdamW>(AdamWOptions(0.01).eps(kEps).amsgrad(true))},
      {"RMSprop", maker<RMSprop>(RMSpropOptions(0.01).eps(kEps).momentum(0.5).centered(true))},
      {"Adagrad", maker<torch::optim::Adagrad>(AdagradOptions(0.05).eps(kEps).lr_decay(0.01))},
      {"LBFGS", maker<LBFGS>(LBFGSOptions(0.1).max_iter(3).history_size(4))},
      {"FusedSGD", maker<FusedSGD>(FusedSGDOptions(0.1).momentum(0.9).weight_decay(0.01))},
      {"FusedSGDLate", maker<FusedSGD>(FusedSGDOptions(0.1).momentum(0.9).materialize_master_grads(false))},
      {"FusedAdam", maker<FusedAdam>(FusedAdamOptions(0.01).eps(kEps))},
      {"FusedAdamLate", maker<FusedAdam>(FusedAdamOptions(0.01).eps(kEps).materialize_master_grads(false))},
      {"FusedAdamCapturable", maker<FusedAdam>(FusedAdamOptions(0.01).eps(kEps).capturable(true).master_weights(true))},
      {"FusedAdamRemainder16", maker<FusedAdam>(FusedAdamOptions(0.01).eps(kEps).master_storage(MasterStorage::remainder16))},
      {"FusedAdamRemainder8", maker<FusedAdam>(FusedAdamOptions(0.01).eps(kEps).master_storage(MasterStorage::remainder8))},
      {"FusedAdamRemainder8Int8",
       maker<FusedAdam>(
           FusedAdamOptions(0.01).eps(kEps).master_storage(MasterStorage::remainder8).moment_storage(MomentStorage::int8))},
      {"FusedAdamInt8", maker<FusedAdam>(FusedAdamOptions(0.01).eps(kEps).moment_storage(MomentStorage::int8))},
      {"FusedAdamBFloat16", maker<FusedAdam>(FusedAdamOptions(0.01).eps(kEps).moment_storage(MomentStorage::bfloat16))},
      {"FusedSGDRemainder16Late",
       maker<FusedSGD>(
           FusedSGDOptions(0.1).momentum(0.9).materialize_master_grads(false).master_storage(MasterStorage::remainder16))},
      {"FusedLAMB", maker<FusedLAMB>(FusedLAMBOptions(0.01).eps(kEps))},
      {"FusedLAMBLate", maker<FusedLAMB>(FusedLAMBOptions(0.01).eps(kEps).materialize_master_grads(false))},
      {"FusedLAMBRemainder16", maker<FusedLAMB>(FusedLAMBOptions(0.01).eps(kEps).master_storage(MasterStorage::remainder16))},
      {"FusedNovoGrad", maker<FusedNovoGrad>(FusedNovoGradOptions(0.01).eps(kEps))},
      {"FusedAdagrad", maker<FusedAdagrad>(FusedAdagradOptions(0.05).eps(kEps))},
      {"FusedLARS", maker<FusedLARS>(FusedLARSOptions(0.1).momentum(0.9).weight_decay(0.01).trust_coefficient(0.1))},
      {"FusedLARSLate",
       maker<FusedLARS>(FusedLARSOptions(0.1).momentum(0.9).trust_coefficient(0.1).materialize_master_grads(false))},
      {"FusedLARSRemainder8",
       maker<FusedLARS>(FusedLARSOptions(0.1).momentum(0.9).trust_coefficient(0.1).master_storage(MasterStorage::remainder8))},
      {"FusedLion", maker<FusedLion>(FusedLionOptions(0.01).weight_decay(0.01))},
      {"FusedLionRemainder8Late",
       maker<FusedLion>(FusedLionOptions(0.01).materialize_master_grads(false).master_storage(MasterStorage::remainder8))},
      {"FusedScheduleFreeAdamW", maker<FusedScheduleFreeAdamW>(FusedScheduleFreeAdamWOptions(0.01).eps(kEps).warmup_steps(3))},
      {"FusedScheduleFreeAdamWRemainder16Late",
       maker<FusedScheduleFreeAdamW>(
           FusedScheduleFreeAdamWOptions(0.01).eps(kEps).materialize_master_grads(false).master_storage(
               MasterStorage::remainder16))},
      {"FusedMixedPrecisionLamb", maker<FusedMixedPrecisionLamb>(FusedMixedPrecisionLambOptions(0.01).eps(kEps))},
  };
  return all;
}

}  // namespace

DropNetImpl::DropNetImpl(int64_t hidden) {
  conv = register_module("conv", torch::nn::Conv2d(1, 3, 3));
  bn = register_module("bn", torch::nn::BatchNorm2d(3));
  drop = register_module("drop", torch::nn::Dropout(0.4));
  fc1 = register_module("fc1", torch::nn::Linear(3 * 16, hidden));
  fc2 = register_module("fc2", torch::nn::Linear(hidden, 2));
}

torch::Tensor DropNetImpl::forward(torch::Tensor x) { return fc2(torch::tanh(fc1(drop(torch::relu(bn(conv(x))).flatten(1))))); }

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& item : makers()) all.push_back(item.first);
    return all;
  }();
  return names;
}

OptimizerPtr make_optimizer(const std::string& name, const DropNet& net) {
  if (name == "LBFGS") return makers().at(name)({{net->parameters()}});  // it takes one group
  const Groups groups = {{{net->conv->weight, net->conv->bias, net->bn->weight, net->bn->bias}},
                         {{net->fc1->weight, net->fc1->bias, net->fc2->weight, net->fc2->bias}}};
  auto optimizer = makers().at(name)(groups);
  optimizer->param_groups()[1].options().set_lr(0.02);
  return optimizer;
}

bool trains(const std::string& optimizer, const std::string& level) {
  // float16 parameters have no remainders.
  if (optimizer.find("Remainder") != std::string::npos && (level == "O2" || level == "O3")) return false;
  if (optimizer == "FusedMixedPrecisionLamb" && level == "plain") return true;
  return optimizer != "LBFGS" || (level != "O2" && level != "O5" && level != "O6");
}

Training::Training(const std::string& optimizer_name, const std::string& level, uint64_t seed, amp::InitializeOptions options)
    : optimizer_name_(optimizer_name), plain_(level == "plain") {
  amp::reset();
  torch::manual_seed(seed);
  model = DropNet();
  optimizer = make_optimizer(optimizer_name, model);
  if (plain_) return;
  auto [handle, opt] = amp::initialize(model, optimizer, level, options);
  net = handle;
  optimizer = std::move(opt);
}

amp::detail::Session& Training::session() const { return amp::detail::require_stash(*optimizer, "a test")->session(); }

torch::Tensor Training::loss_of(int step) {
  const auto output = plain_ ? model->forward(input_of(step)) : net->forward(input_of(step));
  return output.square().mean();
}

void Training::backward(int step) {
  auto loss = loss_of(step);
  losses.push_back(loss.item<double>());
  if (plain_) return loss.backward();
  if (step == 1 && session().scaler(0).dynamic()) loss = loss * std::numeric_limits<float>::infinity();
  amp::scale_loss(loss, *optimizer).backward();
}

void Training::step(int i) {
  if (optimizer_name_ == "LBFGS") {
    optimizer->step([&] {
      optimizer->zero_grad();
      auto loss = loss_of(i);
      losses.push_back(loss.item<double>());
      loss.backward();
      return loss;
    });
    return;
  }
  optimizer->zero_grad();
  backward(i);
  optimizer->step();
}

void Training::run(int begin, int end) {
  for (int i = begin; i < end; ++i) {
    step(i);
    if (i % 2 == 0) continue;
    for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * 0.75);
  }
}

void Training::save(const std::string& path, const amp::Metadata& metadata) const {
  if (plain_) {
    amp::save_checkpoint(path, model, optimizer, metadata);
  } else {
    amp::save_checkpoint(path, net, optimizer, metadata);
  }
}

amp::LoadedCheckpoint Training::load(const std::string& path) {
  return plain_ ? amp::load_checkpoint(path, model, optimizer) : amp::load_checkpoint(path, net, optimizer);
}

std::string Training::bytes() {
  std::ostringstream all;
  all << bytes_of(*model);
  for (const auto& group : optimizer->param_groups()) {
    for (const auto& param : group.params()) all << bytes_of(param);
    all << " lr " << std::hexfloat << group.options().get_lr();
  }
  if (!plain_) {
    for (const auto& scaler : session().scalers) all << " scale " << scaler.loss_scale() << "/" << scaler.unskipped();
  }
  all << bytes_of(at::detail::getDefaultCPUGenerator().get_state());
  return all.str();
}

Folder::Folder() {
  static int count = 0;
  const auto name = "apex_cpp_resume_" + std::to_string(::getpid()) + "_" + std::to_string(count++);
  path_ = (std::filesystem::temp_directory_path() / name).string();
  std::filesystem::create_directory(path_);
}

Folder::~Folder() {
  for (const auto& entry : std::filesystem::directory_iterator(path_)) std::filesystem::remove(entry.path());
  std::filesystem::remove(path_);
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace apex::test
