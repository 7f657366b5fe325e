#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Averages of weights during training, as in Python's torch.optim.swa_utils.
namespace apex::swa_utils {

class AveragedParameters;

struct ExponentialMovingAverageOptions {
  ExponentialMovingAverageOptions(double decay = 0.999) : decay_(decay) {}  // NOLINT: implicit, so that 0.999 is one
  /// The part of the average that stays in an update, 0 to 1.
  TORCH_ARG(double, decay) = 0.999;
  /// Uses min(decay, (1 + n) / (10 + n)) in the update after n others, so that an average forgets the first weights soon.
  TORCH_ARG(bool, use_num_updates) = false;
};

/// An exponential moving average of the weights that `optimizer` trains.
///
/// ```
/// ExponentialMovingAverage ema(*opt, 0.999);
/// // after each opt.step():
/// ema.update();
/// // to evaluate:
/// auto averaged = ema.average_parameters();  // the model has the averages until the end of the block
/// ```
/// It averages what the optimizer steps, as `amp::master_params` lists it: the FP32 masters at O2, O5 and O6, elsewhere the
/// parameters; of an optimizer with a `master_storage`, the masters that it keeps as remainders. An average has the dtype of
/// these, float32 for a 16-bit one, and their device. The first `update` copies the weights; each later one is
/// `torch._foreach_lerp_(averages, weights, 1 - decay)`, with its bits. So it is Python's `AveragedModel(model,
/// multi_avg_fn=get_ema_multi_avg_fn(decay))`. Buffers, such as running statistics of batch norm, are not averaged. One average
/// takes the memory of one set of master weights.
///
/// The optimizer is any `torch::optim::Optimizer`, with amp or without; it must not be moved or destroyed before the average.
/// Make it for the handle that `amp::initialize` returns, and after the last `add_param_group`. It does not know the model of
/// an `FP16_Optimizer`: over its inner optimizer, the averages would replace the masters alone.
///
/// It is a module with the buffers `n_averaged` (int64, on the CPU) and `average_0`, `average_1`, …, so a checkpoint takes it
/// beside the model: `amp::save_checkpoint(path, std::tie(net, ema), opt)`. `save` and `load` write and read it alone. The
/// numbers are the parameters' places when the average was made: make it at the same point of the program that loads.
///
/// Errors: ValueError unless decay is from 0 to 1; RuntimeError for an optimizer that `amp::initialize` has replaced, for a
/// sharded one, and for one without parameters.
class ExponentialMovingAverage : public torch::nn::Module {
 public:
  explicit ExponentialMovingAverage(torch::optim::Optimizer& optimizer, const ExponentialMovingAverageOptions& options = {});

  /// Call it after `step`. Does nothing if amp skipped that step. No synchronisation. Errors: RuntimeError inside
  /// `average_parameters`; ValueError if the optimizer has other parameters than when the average was made. Parameters may be
  /// moved within and between its groups.
  void update();

  /// Puts the averages into the model, rounded to its dtypes, until the result is destroyed. The weights then have their bits
  /// back, and so have the masters: until the next step amp keeps them, also where a checkpoint is written in between. Masters
  /// that the program has written since the last step reach the model here. Needs memory for a copy of the model's parameters.
  /// Do not step within. No synchronisation. Errors: as `update`; after an error the model has its weights.
  [[nodiscard]] AveragedParameters average_parameters();

  /// The averages, in the order of `amp::master_params` when the average was made.
  const std::vector<at::Tensor>& averages() const { return averages_; }
  /// How many updates were made.
  int64_t n_averaged() const;

  /// Loads what `save` wrote, on any device. Errors, before anything is changed: RuntimeError for a missing tensor, ValueError
  /// for one of another shape.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  friend class AveragedParameters;
  /// The tensors that the optimizer steps, with edits of the program, and those of the model, matched by index.
  struct Weights {
    std::vector<at::Tensor> stepped, in_model;
  };
  Weights weights() const;
  /// The same, in the order of the averages.
  Weights averaged_weights() const;
  /// The tensors, with float32 copies of masters that the optimizer keeps as remainders.
  std::vector<at::Tensor> values_of(std::vector<at::Tensor> stepped) const;
  void check_not_applied(const char* caller) const;
  double next_decay() const;

  torch::optim::Optimizer& optimizer_;
  ExponentialMovingAverageOptions options_;
  at::Tensor n_averaged_;
  std::vector<at::Tensor> averages_, params_;  // and the model's parameter of each
  bool applied_ = false;
};

/// The time in which a model has averaged weights; see `ExponentialMovingAverage::average_parameters`.
class AveragedParameters {
 public:
  AveragedParameters(const AveragedParameters&) = delete;
  AveragedParameters& operator=(const AveragedParameters&) = delete;
  /// Restores the weights, and prints a warning in place of an error.
  ~AveragedParameters();

  /// Restores the weights before the end of the block. A second call does nothing. Errors: RuntimeError if a parameter has
  /// another shape now.
  void restore();

 private:
  friend class ExponentialMovingAverage;
  explicit AveragedParameters(ExponentialMovingAverage& average);

  ExponentialMovingAverage* average_;  // null once the weights are restored
  std::vector<at::Tensor> params_, weights_;
};

}  // namespace apex::swa_utils
