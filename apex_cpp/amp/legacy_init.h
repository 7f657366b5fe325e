#pragma once

#include <c10/util/Exception.h>

#include <string>

// Apex's interface from before `amp::initialize`. Each name only reports its replacement, as a deprecation warning when
// compiled and as an error when called. Apex: `apex.amp.amp`, `handle.AmpHandle`, `opt.OptimWrapper` (SL-21).
namespace apex::amp {

namespace detail {
/// Errors: always RuntimeError, which says to write `instead` in place of `name`.
[[noreturn]] inline void throw_replaced(const char* name, const char* instead) {
  C10_THROW_ERROR(Error,
                  std::string("amp::") + name + " belongs to Apex's old interface, which was removed. Write " + instead + ".");
}

constexpr const char* kInsteadOfInit =
    "auto [net, opt] = amp::initialize(model, optimizer, \"O1\"); and train with the two handles that it returns";
constexpr const char* kInsteadOfScaleLoss =
    "{ auto scaled_loss = amp::scale_loss(loss, opt); scaled_loss.backward(); } with the optimizer that amp::initialize "
    "returns";
}  // namespace detail

/// The type that Apex's `handle.wrap_optimizer(optimizer)` returned.
class OptimWrapper {
 public:
  template <class... Args>
  [[deprecated("write amp::scale_loss(loss, opt) with the optimizer that amp::initialize returns")]] OptimWrapper& scale_loss(
      const Args&...) {
    detail::throw_replaced("OptimWrapper::scale_loss", detail::kInsteadOfScaleLoss);
  }
};

/// The type that Apex's `amp.init(...)` returned.
class AmpHandle {
 public:
  template <class... Args>
  [[deprecated("write amp::scale_loss(loss, opt) with the optimizer that amp::initialize returns")]] AmpHandle& scale_loss(
      const Args&...) {
    detail::throw_replaced("AmpHandle::scale_loss", detail::kInsteadOfScaleLoss);
  }
  template <class... Args>
  [[deprecated("pass the optimizer to amp::initialize and use the handle that it returns")]] OptimWrapper wrap_optimizer(
      const Args&...) {
    detail::throw_replaced("AmpHandle::wrap_optimizer", detail::kInsteadOfInit);
  }
};

/// Errors: always RuntimeError naming `amp::initialize`. Apex: `amp.init`, whose handle raises in `scale_loss`.
template <class... Args>
[[deprecated("call amp::initialize(model, optimizer, \"O1\") and train with what it returns")]] AmpHandle init(const Args&...) {
  detail::throw_replaced("init", detail::kInsteadOfInit);
}

}  // namespace apex::amp
