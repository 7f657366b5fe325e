#pragma once

#include <apex_cpp/amp/casts/thread_casts.h>

namespace apex::amp {

/// Switches casts on for the calling thread for its lifetime: the counterpart of `disable_casts`, also within one. Guards nest,
/// and restore what was before, also where they end by exceptions.
///
/// Casts are on for the thread that called `initialize`; on any other from the first forward pass of a handle there, by the
/// rules of the newest `initialize`, until `reset`. What runs on a thread before any handle does, such as a loss, or a forward
/// pass of the original model, is not cast without this guard (Apex patches the whole process); in a parallel region of OpenMP
/// or LibTorch nothing outside of a handle's forward is. It takes the rules of the thread's own `initialize`; where there was
/// none, those of the newest one in the process, at O2, O3 and O5 too, for the original model. Before `initialize`, and after
/// one at O0, it does nothing. Within a backward pass it holds for the operators that the program calls while it lives; threads
/// of autograd are left as they were. No synchronisation.
///
/// While casts are on, a thread's TorchScript modules run as they are written, without the executor's optimisations, whose
/// derivatives know nothing of casts. A module that was optimised before, because it ran with gradients before `initialize`,
/// fails in its backward pass at O1 and O4 with the interpreter's error: load or compile it again.
///
/// ```
/// std::thread evaluation([&] {
///   amp::enable_casts on;
///   const torch::NoGradGuard no_grad;
///   accuracy = evaluate(model, data);
/// });
/// ```
class enable_casts {
 public:
  enable_casts();

 private:
  detail::CastsAs casts_;
};

}  // namespace apex::amp
