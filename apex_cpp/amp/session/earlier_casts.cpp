#include <apex_cpp/amp/session/earlier_casts.h>

#include <apex_cpp/amp/session/session.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/amp/tensors/model_tensors.h>
#include <apex_cpp/amp/tensors/weak_tensor_map.h>

#include <mutex>

namespace apex::amp::detail {
namespace {

struct Casts {
  std::mutex mutex;
  WeakTensorMap<std::weak_ptr<Session>> sessions;
};

Casts& casts() {
  static Casts instance;
  return instance;
}

void retire_optimizers(const Session& session, const at::Tensor& param) {
  for (const auto& weak : session.optimizers) {
    const auto optimizer = weak.lock();
    if (optimizer && optimizer->master_of(param).defined()) optimizer->retire();
  }
}

}  // namespace

bool was_cast_by_amp(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(casts().mutex);
  return casts().sessions.has(tensor);
}

std::shared_ptr<Session> session_that_cast(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(casts().mutex);
  const auto* found = casts().sessions.find(tensor);
  return found ? found->lock() : nullptr;
}

void remember_casts(const torch::nn::Module& module, const std::shared_ptr<Session>& session) {
  const std::lock_guard<std::mutex> lock(casts().mutex);
  for (const auto& [name, tensor] : tensors_of(module)) casts().sessions.set(tensor, session);
}

void undo_earlier_casts(torch::nn::Module& module, CastsInPlace& to_float32) {
  for (auto& [name, tensor] : tensors_of(module)) {
    if (!was_cast_by_amp(tensor)) continue;
    if (const auto session = session_that_cast(tensor)) retire_optimizers(*session, tensor);
    if (!is_low_precision(tensor.scalar_type())) continue;
    tensor.mutable_grad().reset();
    to_float32.cast(tensor);
  }
}

void forget_dead_tensors() {
  const std::lock_guard<std::mutex> lock(casts().mutex);
  casts().sessions.drop_expired();
}

}  // namespace apex::amp::detail
