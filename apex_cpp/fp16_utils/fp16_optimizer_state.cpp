// Saving and loading of FP16_Optimizer (FP16O-09).
#include <ATen/core/grad_mode.h>

#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/fp16_utils/fp16_optimizer.h>

namespace apex::fp16_utils {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// Apex's names.
constexpr const char* kLossScaler = "loss_scaler";
constexpr const char* kDynamicLossScale = "dynamic_loss_scale";
constexpr const char* kOverflow = "overflow";
constexpr const char* kOptimizer = "optimizer_state_dict";
constexpr const char* kMasters = "fp32_from_fp16";

c10::IValue read(InputArchive& archive, const char* name) {
  c10::IValue value;
  TORCH_CHECK(archive.try_read(name, value), "The archive has no entry '", name, "': it was not saved by an FP16_Optimizer.");
  return value;
}

InputArchive child(InputArchive& archive, const char* name) {
  InputArchive part;
  TORCH_CHECK(archive.try_read(name, part), "The archive has no part '", name, "': it was not saved by an FP16_Optimizer.");
  return part;
}

struct SavedScaler {
  double loss_scale;
  int64_t unskipped;
  int64_t scale_window;
};

SavedScaler read_scaler(InputArchive& archive) {
  InputArchive part = child(archive, kLossScaler);
  return {read(part, "loss_scale").toDouble(), read(part, "unskipped").toInt(), read(part, "scale_window").toInt()};
}

}  // namespace

void FP16_Optimizer::save(OutputArchive& archive) const {
  const auto part = [&] { return OutputArchive(archive.compilation_unit()); };
  OutputArchive scaler = part(), optimizer = part(), masters = part();
  scaler.write("loss_scale", c10::IValue(scaler_.loss_scale()));
  scaler.write("unskipped", c10::IValue(scaler_.unskipped()));
  scaler.write("scale_window", c10::IValue(scaler_.scale_window()));
  archive.write(kLossScaler, scaler);
  archive.write(kDynamicLossScale, c10::IValue(scaler_.dynamic()));
  archive.write(kOverflow, c10::IValue(overflow_));
  amp::detail::save_without_scratch(*optimizer_, [&] { optimizer_->save(optimizer); });
  archive.write(kOptimizer, optimizer);
  int64_t size = 0;
  for (const detail::TrainedParam* each : params_.trained_in(optimizer_->param_groups())) {
    if (each->has_master()) masters.write(std::to_string(size++), each->edited_master());
  }
  masters.write("size", c10::IValue(size));
  archive.write(kMasters, masters);
}

std::vector<at::Tensor> FP16_Optimizer::read_masters(InputArchive& archive) const {
  InputArchive part = child(archive, kMasters);
  const int64_t size = read(part, "size").toInt();
  TORCH_CHECK(size == static_cast<int64_t>(params_.masters().size()), "The saved FP16_Optimizer has ", size,
              " master weights, this one has ", params_.masters().size(), ". Load it into one over the same parameters.");
  std::vector<at::Tensor> values(params_.masters().size());
  for (size_t i = 0; i < values.size(); ++i) {
    part.read(std::to_string(i), values[i]);
    TORCH_CHECK(values[i].sizes() == params_.masters()[i].sizes(), "The saved master weight ", i, " has shape ",
                values[i].sizes(), ", expected ", params_.masters()[i].sizes(), ".");
  }
  return values;
}

void FP16_Optimizer::load(InputArchive& archive) {
  params_.add_new(*optimizer_);
  const std::vector<at::Tensor> values = read_masters(archive);
  const SavedScaler saved = read_scaler(archive);
  const bool dynamic = read(archive, kDynamicLossScale).toBool();
  const bool overflow = read(archive, kOverflow).toBool();
  InputArchive optimizer = child(archive, kOptimizer);

  const DynamicLossArgs& args = options_.dynamic_loss_args();
  amp::LossScaler scaler(dynamic ? amp::LossScale("dynamic") : amp::LossScale(saved.loss_scale), args.min_loss_scale(),
                         args.max_loss_scale());
  scaler.restore(saved.loss_scale, saved.unskipped);
  scaler.set_scale_window(saved.scale_window);

  amp::detail::load_replacing_state(*optimizer_, optimizer, [&] { optimizer_->load(optimizer); });
  amp::detail::match_state_to_params(*optimizer_, /*has_masters=*/true);
  scaler_ = std::move(scaler);
  options_.dynamic_loss_scale(dynamic);
  overflow_ = overflow;
  const at::NoGradGuard no_grad;
  params_.take_edits();  // gives masters the layouts that a load of the model may have changed
  for (size_t i = 0; i < values.size(); ++i) at::Tensor(params_.masters()[i]).copy_(values[i]);
  params_.mark_synced();
}

OutputArchive& operator<<(OutputArchive& archive, const FP16_Optimizer& optimizer) {
  optimizer.save(archive);
  return archive;
}

InputArchive& operator>>(InputArchive& archive, FP16_Optimizer& optimizer) {
  optimizer.load(archive);
  return archive;
}

}  // namespace apex::fp16_utils
