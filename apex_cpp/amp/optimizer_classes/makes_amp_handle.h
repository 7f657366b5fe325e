#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <typeinfo>

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
  /// The class that handles are made of; null where the class does not tell. Objects of classes derived from it are refused.
  virtual const std::type_info* amp_handle_class() const { return nullptr; }
  /// A handle of the optimizer's own class, move-constructed from it.
  virtual std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<detail::Session>& session) = 0;

 protected:
  MakesAmpHandle() = default;
  MakesAmpHandle(MakesAmpHandle&&) = default;
  MakesAmpHandle& operator=(MakesAmpHandle&&) = default;
};

}  // namespace apex::amp
