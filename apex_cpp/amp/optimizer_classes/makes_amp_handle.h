#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

namespace apex::amp {

namespace detail {
struct Session;
}

/// Base, beside `torch::optim::Optimizer`, of an optimizer class that `amp::initialize` can be given behind a pointer: it knows
/// its own class, which the pointer does not tell. A class derived from such a one counts as the program's own, unless it
/// declares the function again (`kMakesOwnHandle`).
class MakesAmpHandle {
 public:
  virtual ~MakesAmpHandle() = default;
  /// A handle of the optimizer's own class, move-constructed from it. Errors: TypeError, where the class can tell, if the
  /// object is of one derived from it.
  virtual std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<detail::Session>& session) = 0;

 protected:
  MakesAmpHandle() = default;
  MakesAmpHandle(MakesAmpHandle&&) = default;
  MakesAmpHandle& operator=(MakesAmpHandle&&) = default;
};

}  // namespace apex::amp
