#include "config/config.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/counted.h"
#include "config/config_keys.h"
#include "errors.h"

namespace train {
namespace {

constexpr int64_t kManyLayers = 64;
constexpr int64_t kWide = 1 << 16;
constexpr int64_t kLargeImage = 1024;
constexpr double kLargestScale = 3e38;  // that float32 holds

void describe_model(ConfigKeys& keys, ModelConfig& model) {
  keys.choice("type", model.type, {"mlp", "convnet", "resnet", "alexnet"});
  if (model.type == "alexnet") {
    keys.real("dropout", model.dropout, 0, 0.95);
    return;
  }
  keys.integers("widths", model.widths, 1, kWide);
  if (model.type == "resnet") {
    keys.integers("blocks", model.blocks, 1, kManyLayers);
    keys.require(model.blocks.size() == model.widths.size(), "blocks",
                 "has " + common::counted(static_cast<int64_t>(model.blocks.size()), "stage") + ", but 'widths' has " +
                     std::to_string(model.widths.size()));
    return;
  }
  keys.real("dropout", model.dropout, 0, 0.95);
  if (model.type == "mlp") keys.flag("batch_norm", model.batch_norm);
}

void describe_data(ConfigKeys& keys, DataConfig& data) {
  keys.choice("set", data.set, {"digits", "mnist", "cifar10"});
  keys.text("dir", data.dir);
  keys.integer("image_size", data.image_size, 0, kLargeImage);
  keys.real("noise", data.noise, 0, 10);
  keys.real("scale", data.scale, 1e-30, 1e30);
  keys.real("offset", data.offset, -1e30, 1e30);
}

void describe_betas(ConfigKeys& keys, OptimizerConfig& optimizer) {
  keys.real("beta1", optimizer.beta1, 0, 0.999999);
  keys.real("beta2", optimizer.beta2, 0, 0.999999);
}

void describe_moments(ConfigKeys& keys, OptimizerConfig& optimizer) {
  describe_betas(keys, optimizer);
  keys.real("eps", optimizer.eps, 0, 1);
}

void describe_sgd(ConfigKeys& keys, OptimizerConfig& optimizer) {
  keys.real("momentum", optimizer.momentum, 0, 1);
  keys.real("dampening", optimizer.dampening, 0, 1);
  keys.flag("nesterov", optimizer.nesterov);
  keys.require(!optimizer.nesterov || (optimizer.momentum > 0 && optimizer.dampening == 0), "nesterov",
               "needs a momentum above 0 and no dampening");
}

void describe_lars(ConfigKeys& keys, OptimizerConfig& optimizer) {
  keys.real("momentum", optimizer.momentum, 0, 1);
  keys.flag("nesterov", optimizer.nesterov);
  keys.require(!optimizer.nesterov || optimizer.momentum > 0, "nesterov", "needs a momentum above 0");
  keys.real("eps", optimizer.eps, 0, 1);
  keys.real("trust_coefficient", optimizer.trust_coefficient, 0, 1000);
}

void describe_schedule_free(ConfigKeys& keys, OptimizerConfig& optimizer) {
  describe_moments(keys, optimizer);
  keys.require(optimizer.beta1 > 0, "beta1", "must be above 0 for " + optimizer.type);
  keys.integer("warmup_steps", optimizer.warmup_steps, 0, 1000000000);
  keys.real("r", optimizer.r, 0, 100);
  keys.real("weight_lr_power", optimizer.weight_lr_power, 0, 100);
}

bool is_lamb(const std::string& type) { return type == "FusedLAMB" || type == "FusedMixedPrecisionLamb"; }

void describe_storage(ConfigKeys& keys, OptimizerConfig& optimizer) {
  std::vector<std::string> storages = {"float32", "remainder16", "remainder8"};
  if (optimizer.type == "FusedAdam") storages.push_back("stochastic");
  keys.choice("master_storage", optimizer.master_storage, storages);
  const bool has_choice = optimizer.type == "FusedAdam" || optimizer.is_sharded();
  if (has_choice) keys.choice("moment_storage", optimizer.moment_storage, {"float32", "bfloat16", "int8"});
}

void describe_fused(ConfigKeys& keys, OptimizerConfig& optimizer) {
  if (optimizer.type == "FusedSGD") {
    describe_sgd(keys, optimizer);
  } else if (optimizer.type == "FusedAdagrad") {
    keys.real("eps", optimizer.eps, 0, 1);
  } else if (optimizer.type == "FusedLARS") {
    describe_lars(keys, optimizer);
  } else if (optimizer.type == "FusedLion") {
    describe_betas(keys, optimizer);
  } else if (optimizer.type == "FusedScheduleFreeAdamW") {
    describe_schedule_free(keys, optimizer);
  } else {
    describe_moments(keys, optimizer);
  }
  if (optimizer.type == "FusedAdam" || is_lamb(optimizer.type)) keys.flag("adam_w_mode", optimizer.adam_w_mode);
  if (is_lamb(optimizer.type)) keys.real("max_grad_norm", optimizer.max_grad_norm, 0, 1e6);
  if (optimizer.type != "FusedMixedPrecisionLamb") describe_storage(keys, optimizer);
  keys.flag("materialize_master_grads", optimizer.materialize_master_grads);
}

void describe_muon(ConfigKeys& keys, OptimizerConfig& optimizer) {
  describe_moments(keys, optimizer);
  keys.integer("ns_steps", optimizer.ns_steps, 1, 99);
  keys.choice("adjust_lr_fn", optimizer.adjust_lr_fn, {"original", "match_rms_adamw"});
  keys.flag("materialize_master_grads", optimizer.materialize_master_grads);
  keys.require(optimizer.clip_grad_norm == 0, "clip_grad_norm",
               "is not for Muon, whose steps have the same length for any gradient");
}

void describe_optimizer(ConfigKeys& keys, OptimizerConfig& optimizer) {
  keys.choice(
      "type", optimizer.type,
      {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Muon", "FusedSGD", "FusedAdam", "FusedLAMB", "FusedNovoGrad",
       "FusedAdagrad", "FusedLARS", "FusedLion", "FusedScheduleFreeAdamW", "FusedMixedPrecisionLamb", "DistributedFusedAdam"});
  keys.real("lr", optimizer.lr, 0, 1000);
  keys.real("weight_decay", optimizer.weight_decay, 0, 10);
  keys.real("clip_grad_norm", optimizer.clip_grad_norm, 0, 1e6);
  if (optimizer.is_sharded()) {
    describe_moments(keys, optimizer);
    keys.flag("adam_w_mode", optimizer.adam_w_mode);
    describe_storage(keys, optimizer);
  } else if (optimizer.type.rfind("Fused", 0) == 0) {
    describe_fused(keys, optimizer);
  } else if (optimizer.is_muon()) {
    describe_muon(keys, optimizer);
  } else if (optimizer.type == "SGD") {
    describe_sgd(keys, optimizer);
  } else if (optimizer.type == "RMSprop") {
    keys.real("alpha", optimizer.alpha, 0, 1);
    keys.real("eps", optimizer.eps, 0, 1);
    keys.real("momentum", optimizer.momentum, 0, 1);
    keys.flag("centered", optimizer.centered);
  } else if (optimizer.type == "Adagrad") {
    keys.real("lr_decay", optimizer.lr_decay, 0, 1);
    keys.real("eps", optimizer.eps, 0, 1);
  } else {
    describe_moments(keys, optimizer);
    keys.flag("amsgrad", optimizer.amsgrad);
  }
}

void describe_schedule(ConfigKeys& keys, ScheduleConfig& schedule) {
  keys.choice("type", schedule.type, {"none", "step", "cosine", "linear", "polynomial", "one_cycle"});
  if (schedule.type == "one_cycle") {
    keys.real("pct_start", schedule.pct_start, 0, 1);
    keys.real("div_factor", schedule.div_factor, 1, 1e9);
    keys.real("final_div_factor", schedule.final_div_factor, 1, 1e9);
    keys.flag("cycle_momentum", schedule.cycle_momentum);
    return;
  }
  keys.real("warmup_epochs", schedule.warmup_epochs, 0, 1e6);
  if (schedule.type == "step") {
    keys.integer("step_epochs", schedule.step_epochs, 1, 1000000);
    keys.real("gamma", schedule.gamma, 0, 1);
  } else if (schedule.type == "cosine" || schedule.type == "linear") {
    keys.real("final_lr", schedule.final_lr, 0, 1000);
  } else if (schedule.type == "polynomial") {
    keys.real("power", schedule.power, 0, 100);
  }
}

// What a schedule needs of the optimizer.
void check_schedule(ConfigKeys& keys, const ScheduleConfig& schedule, const OptimizerConfig& optimizer) {
  keys.require(schedule.type != "linear" || (optimizer.lr > 0 && schedule.final_lr <= optimizer.lr), "schedule",
               "a linear schedule needs an 'optimizer.lr' above 0, and a 'final_lr' that is not above it");
  const auto& type = optimizer.type;
  const bool has_momentum = type != "Adagrad" && type != "FusedAdagrad" && type != "FusedScheduleFreeAdamW";
  keys.require(schedule.type != "one_cycle" || !schedule.cycle_momentum || has_momentum, "schedule",
               "cycles momentum, which " + type + " does not have: add 'cycle_momentum: false'");
}

void describe_ema(ConfigKeys& keys, EmaConfig& ema) {
  keys.real("decay", ema.decay, 0, 1);
  keys.flag("use_num_updates", ema.use_num_updates);
}

void describe_average(ConfigKeys& keys, Config& config) {
  if (!config.ema && !keys.has("ema")) return;
  if (!config.ema) config.ema.emplace();
  keys.section("ema", [&](ConfigKeys& inner) { describe_ema(inner, *config.ema); });
  keys.require(!config.optimizer.is_sharded(), "ema",
               "is not for " + config.optimizer.type + ", whose weights are spread over processes: use FusedAdam");
  keys.require(!config.optimizer.is_muon(), "ema", "is of one optimizer, and Muon trains beside another: use FusedAdam");
}

void describe_torch_amp(ConfigKeys& keys, TorchAmpConfig& torch_amp) {
  keys.choice("autocast", torch_amp.autocast, {"none", "float16", "bfloat16"});
  keys.flag("grad_scaler", torch_amp.grad_scaler);
  if (!torch_amp.grad_scaler) return;
  keys.real("init_scale", torch_amp.init_scale, 1e-30, kLargestScale);
  keys.real("growth_factor", torch_amp.growth_factor, 1 + 1e-6, 1e6);
  keys.real("backoff_factor", torch_amp.backoff_factor, 1e-6, 1 - 1e-6);
  keys.integer("growth_interval", torch_amp.growth_interval, 1, 1000000000);
}

// What the block gave, then as comments what the level itself sets: together, every setting in use.
std::string amp_block(const apex::amp::OptLevel& level) {
  auto text = level.to_yaml();
  if (!level.overrides().enabled().value_or(true)) {
    return text;
  }
  for (const auto& [key, value] : describe(level.preset())) {
    text += key == "opt_level" || !level.place_of(key).empty() ? "" : "# " + key + ": " + value + "\n";
  }
  return text;
}

// A level of amp, or what stands in its place.
void describe_precision(ConfigKeys& keys, Config& config, const std::string& source) {
  if (!config.torch_amp && !keys.has("torch_amp")) {
    const auto read = [&](const std::string& amp) {
      config.level = as_user_error([&] { return apex::amp::OptLevel::from_yaml_string(amp, source); });
    };
    keys.block("amp", read, amp_block(config.level));
    return;
  }
  keys.require(!keys.has("amp"), "amp", "cannot be combined with 'torch_amp': leave out one of them");
  keys.require(!config.climbs(), "on_divergence",
               "moves to a higher level, and 'torch_amp' is not a level: give 'amp' instead");
  keys.require(!config.optimizer.is_sharded(), "torch_amp",
               "is not for " + config.optimizer.type + ", which trains at a level of amp here: give 'amp', or use FusedAdam");
  keys.require(!config.optimizer.is_muon(), "torch_amp", "is not for Muon, which trains at a level of amp here: give 'amp'");
  if (!config.torch_amp) config.torch_amp.emplace();
  keys.section("torch_amp", [&](ConfigKeys& inner) { describe_torch_amp(inner, *config.torch_amp); });
}

// The one list of keys, for reading `source` and for writing.
void describe(ConfigKeys& keys, Config& config, const std::string& source) {
  keys.section("model", [&](ConfigKeys& inner) { describe_model(inner, config.model); });
  keys.section("data", [&](ConfigKeys& inner) { describe_data(inner, config.data); });
  keys.section("optimizer", [&](ConfigKeys& inner) { describe_optimizer(inner, config.optimizer); });
  keys.section("schedule", [&](ConfigKeys& inner) { describe_schedule(inner, config.schedule); });
  check_schedule(keys, config.schedule, config.optimizer);
  describe_average(keys, config);
  keys.integer("epochs", config.epochs, 1, 1000000);
  keys.integer("batch_size", config.batch_size, 2, 1 << 20);
  keys.flag("sync_batch_norm", config.sync_batch_norm);
  keys.integer("seed", config.seed, 0, std::numeric_limits<int64_t>::max());
  keys.choice("device", config.device, {"cpu", "cuda", "auto"});
  keys.integer("threads", config.threads, 0, 1024);
  keys.integer("checkpoint_every", config.checkpoint_every, 1, 1000000);
  keys.integer("statistics_every", config.statistics_every, 0, 1000000000);
  keys.flag("tensorboard", config.tensorboard);
  keys.text("run_dir", config.run_dir);
  keys.choice("on_divergence", config.on_divergence, {"stop", "climb"});
  keys.text("climb_to", config.climb_to);
  keys.require(config.climbs() || config.climb_to.empty(), "climb_to", "has no effect without 'on_divergence: climb'");
  describe_precision(keys, config, source);
}

}  // namespace

Config parse_config(const std::string& text, const std::string& source) {
  Config config;
  read_keys(text, source, [&](ConfigKeys& keys) { describe(keys, config, source); });
  if (config.torch_amp) config.level = without_amp();
  return config;
}

std::string read_text(const std::string& path, const std::string& what) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw UserError("cannot read " + what + " '" + path + "': " + (file ? "it is a folder" : std::strerror(errno)));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Config read_config(const std::string& path) { return parse_config(read_text(path, "config"), path); }

TorchAmpConfig parse_torch_amp(const std::string& text, const std::string& source) {
  TorchAmpConfig torch_amp;
  read_keys(text, source, [&](ConfigKeys& keys) {
    keys.section("torch_amp", [&](ConfigKeys& inner) { describe_torch_amp(inner, torch_amp); });
  });
  return torch_amp;
}

apex::amp::OptLevel without_amp() { return apex::amp::OptLevel::from_yaml_string("{opt_level: O0, enabled: false}"); }

std::string to_yaml(Config config) {
  return write_keys([&](ConfigKeys& keys) { describe(keys, config, ""); });
}

}  // namespace train
