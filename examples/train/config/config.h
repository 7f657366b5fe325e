#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <apex_cpp/amp.h>

namespace train {

constexpr double kUnset = std::numeric_limits<double>::quiet_NaN();

struct ModelConfig {
  std::string type;             // mlp | convnet | resnet | alexnet
  std::vector<int64_t> widths;  // units of each hidden layer, or channels of each stage; alexnet: none, it has its own
  std::vector<int64_t> blocks;  // resnet: residual blocks of each stage
  double dropout = 0;           // mlp, convnet: before the last layer; alexnet: before both hidden layers
  bool batch_norm = false;      // mlp: behind each hidden layer's product; convnet and resnet always have it
};

struct DataConfig {
  std::string set;         // digits | mnist | cifar10
  std::string dir;         // folder of the set's files; empty: see data/load.h
  int64_t image_size = 0;  // height and width that images are resized to; 0: as they are in the files
  double noise = 0;        // standard deviation of what is added to pixels, by that of the set's own; the same for every run
  double scale = 1;        // normalized pixels are multiplied by it
  double offset = 0;       // and then increased by this
};

struct OptimizerConfig {
  // SGD | Adam | AdamW | RMSprop | Adagrad with LibTorch's option names below, or FusedSGD | FusedAdam | FusedLAMB |
  // FusedNovoGrad | FusedAdagrad | FusedMixedPrecisionLamb with Apex's, FusedLARS with those of Apex on
  // ROCm, FusedLion with the paper's, FusedScheduleFreeAdamW with those of AdamWScheduleFree, or Muon for the matrices of
  // hidden layers beside FusedAdam for all else. DistributedFusedAdam, with those of FusedAdam, spreads its state over the
  // processes that train (examples/distributed).
  std::string type;
  double lr = kUnset;
  double weight_decay = 0;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool amsgrad = false;
  double alpha = 0.99;
  bool centered = false;
  double lr_decay = 0;
  bool adam_w_mode = true;
  bool materialize_master_grads = true;
  std::string master_storage = "float32";  // | remainder16 | remainder8: of BF16 parameters
  std::string moment_storage = "float32";  // | bfloat16 | int8: of FusedAdam and DistributedFusedAdam
  double max_grad_norm = 1;
  double trust_coefficient = 0.001;
  int64_t warmup_steps = 0;  // these three: of FusedScheduleFreeAdamW
  double r = 0;
  double weight_lr_power = 2;
  int64_t ns_steps = 5;  // these two: of Muon
  std::string adjust_lr_fn = "match_rms_adamw";
  double clip_grad_norm = 0;  // 0: gradients are not clipped

  /// Whether each process keeps a part of the state, and all save it together.
  bool is_sharded() const { return type == "DistributedFusedAdam"; }
  /// Whether two optimizers train, each a part of the parameters.
  bool is_muon() const { return type == "Muon"; }
};

struct ScheduleConfig {
  std::string type = "none";  // none | step | cosine | linear | polynomial | one_cycle
  double warmup_epochs = 0;   // not for one_cycle, which rises by itself
  int64_t step_epochs = 10;
  double gamma = 0.1;
  double final_lr = 0;
  double power = 1;
  // Of one_cycle, with PyTorch's names.
  double pct_start = 0.3;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool cycle_momentum = true;
};

/// An exponential moving average of the weights, with which the network is tested.
struct EmaConfig {
  double decay = 0.999;
  bool use_num_updates = false;  // a smaller decay in the first steps
};

/// Mixed precision as PyTorch's own programs have it, in place of an opt level: a forward pass under autocast, and GradScaler.
struct TorchAmpConfig {
  std::string autocast;  // none | float16 | bfloat16
  bool grad_scaler = false;
  // Of the GradScaler.
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // steps
};

/// Everything one run depends on; one YAML file.
struct Config {
  ModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  std::optional<EmaConfig> ema;
  int64_t epochs = 10;
  int64_t batch_size = 64;       // of all processes together
  bool sync_batch_norm = false;  // batch norm over the images of all processes
  int64_t seed = 0;
  int64_t threads = 0;           // CPU threads; 0: LibTorch's own choice, written down in the run folder
  int64_t checkpoint_every = 1;  // epochs
  int64_t statistics_every = 0;  // steps; 0: never
  bool tensorboard = false;      // an event file in the run folder
  std::string device = "auto";   // cpu | cuda | auto
  std::string run_dir;
  std::string on_divergence = "stop";  // stop | climb: from the last good checkpoint on at the level above
  std::string climb_to;                // climb: a level, or its YAML file, to go on at first; empty: the level above
  apex::amp::OptLevel level{"O0"};
  std::optional<TorchAmpConfig> torch_amp;  // then `level` has amp switched off

  bool climbs() const { return on_divergence == "climb"; }
};

/// Reads and validates a config. Throws UserError, with a line for each mistake: file, line, column and what is wrong.
Config read_config(const std::string& path);
Config parse_config(const std::string& text, const std::string& source);
/// The text of a file that a program is given: `what` it is, for messages. Throws UserError where it cannot be read.
std::string read_text(const std::string& path, const std::string& what);
/// A mapping with the one key `torch_amp`, as a config has it. Throws UserError as `parse_config`.
TorchAmpConfig parse_torch_amp(const std::string& text, const std::string& source);

/// The config as YAML, every key with the value in use, amp's defaults as comments; `parse_config` reads it back to the same
/// run.
std::string to_yaml(Config config);

/// The level at which `amp::initialize` answers with handles that do nothing, for training without amp.
apex::amp::OptLevel without_amp();

}  // namespace train
