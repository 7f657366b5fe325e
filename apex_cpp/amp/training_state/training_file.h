#pragma once

#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/amp/training_state/python_optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace apex::amp::detail {

/// torch.amp.GradScaler.state_dict().
struct PythonScaler {
  double scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t growth_tracker = 0;
};

/// The contents of a training state, which C++ and Python write and read.
struct TrainingState {
  std::map<std::string, at::Tensor> weights;  // the model's parameters and buffers
  PythonOptimizer optimizer;
  std::optional<PythonScaler> scaler;
};

/// Converts between a training state and the form in which a file has it. The file's metadata has the entry "training_state", a
/// JSON text; its tensors are "model/NAME" and "optimizer/state/POSITION/NAME". Errors of `file_of`: ValueError for an option
/// or a scale that is not finite. Errors of `training_state_of`: c10::Error with the value that is missing, wrong or unknown,
/// and the remedy.
TensorFile file_of(const TrainingState& state);
TrainingState training_state_of(const TensorFile& file);

}  // namespace apex::amp::detail
