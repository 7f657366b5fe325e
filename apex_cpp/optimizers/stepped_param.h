#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

// The tensors of a parameter's state. They have the parameter's memory layout, since kernels walk both in memory order.
namespace apex::optimizers::detail {

/// Returns the state tensor `kept`, converted to the parameter's current layout. Creates it with zeros if it is undefined.
const at::Tensor& state_like(const at::Tensor& param, at::Tensor& kept, at::ScalarType dtype);

/// The same for a float32 master, which is created as a copy of the parameter.
const at::Tensor& master_like(const at::Tensor& param, at::Tensor& master);

/// The loaded tensor on the parameter's device, in its layout and in `dtype`.
/// Errors: RuntimeError beginning with the parameter's `name` if the shapes differ.
at::Tensor loaded_like(const at::Tensor& param, const at::Tensor& loaded, at::ScalarType dtype, const std::string& name,
                       const std::string& key);

// What a step checks before it changes anything.

/// The beginning of errors: "Parameter 2 of group 0, of shape [2, 3],".
std::string name_of(size_t group, size_t position, const at::Tensor& param);

/// A parameter that a step changes, with its gradient and its copy in the model.
struct SteppedParam {
  size_t group;
  size_t position;
  const at::Tensor& param;
  const at::Tensor& grad;
  const at::Tensor& copy;  // receives the new value too; may be undefined

  std::string name() const { return name_of(group, position, param); }
  /// Errors: RuntimeError naming the parameter, the value and the remedy, if the kernels do not support it.
  void check() const;
};

/// Checks that the tensors that a step writes do not overlap in memory. Repeats the check only after an address has changed.
class OverlapCheck {
 public:
  /// Errors: RuntimeError naming two parameters that share memory.
  void check(const std::vector<SteppedParam>& params);

 private:
  /// The bytes of a parameter or its copy.
  struct Span {
    const char* begin;
    const char* end;
    c10::Device device;
    size_t index;  // of the parameter
    bool operator==(const Span& other) const;
  };
  static void add_span(std::vector<Span>& spans, const at::Tensor& tensor, size_t index);
  static bool starts_before(const Span& a, const Span& b);
  static void check_spans(const std::vector<SteppedParam>& params, std::vector<Span> spans);

  std::vector<Span> last_;
};

}  // namespace apex::optimizers::detail
