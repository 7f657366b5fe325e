#include <apex_cpp/amp/session/earlier_casts.h>

#include <apex_cpp/amp/session/session.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/amp/tensors/model_tensors.h>

#include <mutex>
#include <unordered_map>

namespace apex::amp::detail {
namespace {

using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

struct Cast {
  Weak tensor;  // keeps the address from being used again
  std::weak_ptr<Session> session;
};

struct Casts {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, Cast> by_tensor;
};

Casts& casts() {
  static Casts instance;
  return instance;
}

std::shared_ptr<Session> earlier_session(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(casts().mutex);
  const auto found = casts().by_tensor.find(tensor.unsafeGetTensorImpl());
  return found == casts().by_tensor.end() ? nullptr : found->second.session.lock();
}

void retire_optimizers(const Session& session, const at::Tensor& param) {
  for (const auto& weak : session.optimizers) {
    const auto optimizer = weak.lock();
    if (optimizer && optimizer->master_of(param).defined()) optimizer->retire();
  }
}

void widen(const at::Tensor& tensor) {
  if (!is_low_precision(tensor.scalar_type())) return;
  tensor.mutable_grad().reset();
  tensor.set_data(tensor.detach().to(at::kFloat));
}

}  // namespace

bool was_cast_by_amp(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(casts().mutex);
  return casts().by_tensor.count(tensor.unsafeGetTensorImpl()) > 0;
}

void remember_casts(const torch::nn::Module& module, const std::shared_ptr<Session>& session) {
  forget_dead_tensors();
  const std::lock_guard<std::mutex> lock(casts().mutex);
  for (const auto& [name, tensor] : tensors_of(module)) {
    casts().by_tensor.insert_or_assign(tensor.unsafeGetTensorImpl(), Cast{Weak(tensor.getIntrusivePtr()), session});
  }
}

void undo_earlier_casts(torch::nn::Module& module) {
  for (const auto& [name, tensor] : tensors_of(module)) {
    if (!was_cast_by_amp(tensor)) continue;
    if (const auto session = earlier_session(tensor)) retire_optimizers(*session, tensor);
    widen(tensor);
  }
}

void forget_dead_tensors() {
  const std::lock_guard<std::mutex> lock(casts().mutex);
  auto& all = casts().by_tensor;
  for (auto it = all.begin(); it != all.end();) it = it->second.tensor.expired() ? all.erase(it) : std::next(it);
}

}  // namespace apex::amp::detail
