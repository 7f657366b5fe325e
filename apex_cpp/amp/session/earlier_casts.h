#pragma once

#include <torch/nn/module.h>

#include <apex_cpp/amp/tensors/convert_network.h>

#include <memory>

namespace apex::amp::detail {

struct Session;

// A model that `initialize` has cast may be initialized again, with a new optimizer (BUG-07). amp therefore remembers which
// parameters and buffers it cast, to tell such a model from one that came in 16 bits. Weak references only; safe from any
// thread.

bool was_cast_by_amp(const at::Tensor& tensor);
/// The session that did so last; null if there was none, or if it is gone.
std::shared_ptr<Session> session_that_cast(const at::Tensor& tensor);
/// Remembers all parameters and buffers of a model that `session` casts.
void remember_casts(const torch::nn::Module& module, const std::shared_ptr<Session>& session);
/// Makes float32 again what amp cast in the model, and retires the optimizers of earlier calls that keep masters of its
/// parameters: these would write over the new ones, so their next use is an error. `to_float32` is for all models of a call.
void undo_earlier_casts(torch::nn::Module& module, CastsInPlace& to_float32);
/// Drops what is remembered of tensors that are gone.
void forget_dead_tensors();

}  // namespace apex::amp::detail
