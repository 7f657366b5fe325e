#include "contender.h"

#include <torch/cuda.h>
#include <torch/utils.h>

#include <utility>

#include "../measure.h"

namespace bench::train {
namespace {

using apex::amp::detail::SavedCasts, apex::amp::detail::thread_casts;

constexpr uint64_t kSeed = 7;

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

int64_t bytes_of_gradients(const std::vector<at::Tensor>& parameters) {
  int64_t bytes = 0;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) bytes += static_cast<int64_t>(parameter.grad().nbytes());
  }
  return bytes;
}

}  // namespace

/// Applies the contender's casts to the thread while the object lives.
class Contender::Turn {
 public:
  explicit Turn(Contender& contender) : casts_(contender.casts_) {
    auto* const recorder = thread_casts().recorder;
    if (casts_) SavedCasts(*casts_).restore();
    thread_casts().recorder = recorder;  // keeps the recorder of an amp::trace around the turn
  }
  ~Turn() {
    casts_ = SavedCasts();
    outside_.restore();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  SavedCasts outside_;
  std::optional<SavedCasts>& casts_;
};

Contender::Contender(const Task& task, Way way, at::Device device, bool quick) : way_(std::move(way)) {
  const Turn turn(*this);
  torch::manual_seed(kSeed);
  batch_ = task.batch(quick);
  batch_ = {batch_.input.to(device), batch_.target.to(device)};
  const apex::amp::detail::Counting counting(memory_);
  auto network = task.network(quick);
  network->to(device);
  training_ = start(way_, std::move(network));
  footprint_.weights = bytes_of(training_->parameters()) + bytes_of(training_->buffers());
}

double Contender::timed(const Observer& reached) {
  const bool on_device = !batch_.input.is_cpu();
  return nanoseconds_per_call(
      [&] {
        training_->step(batch_, reached);
        if (on_device) torch::cuda::synchronize();
      },
      1);
}

double Contender::step() {
  const Turn turn(*this);
  Stopwatch behind_backward;
  const double time = timed([&](Point point) {
    if (point == Point::backward_done) behind_backward = Stopwatch();
  });
  updates_.push_back(behind_backward.nanoseconds());
  return time;
}

double Contender::counted_step() {
  const Turn turn(*this);
  const apex::amp::detail::Counting counting(memory_);
  memory_->take_peak();
  const double time = timed([this](Point point) { look(point); });
  footprint_.held = memory_->live();
  if (has_stepped_) footprint_.peak = memory_->take_peak();
  has_stepped_ = true;
  return time;
}

void Contender::look(Point point) {
  switch (point) {
    case Point::gradients_dropped:
      live_before_forward_ = memory_->live();
      break;
    case Point::forward_done:
      footprint_.activations = memory_->live() - live_before_forward_;
      break;
    case Point::backward_done:
      footprint_.gradients = bytes_of_gradients(training_->parameters());
      break;
  }
}

}  // namespace bench::train
