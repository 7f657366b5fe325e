#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

// The tensors of a parameter's state. Kernels walk them and the parameter from start to end, so that they have its layout.
namespace apex::optimizers::detail {

/// `kept` with its values in the layout that the parameter has now; zeros of this dtype if there is none yet.
const at::Tensor& kept_like(const at::Tensor& param, at::Tensor& kept, at::ScalarType dtype);

/// The same of a float32 master, which begins as the parameter.
const at::Tensor& master_like(const at::Tensor& param, at::Tensor& master);

/// A tensor that was loaded, on the parameter's device and in its layout, as this dtype.
/// Errors: RuntimeError beginning with the parameter's `name`, for one of another shape.
at::Tensor loaded_like(const at::Tensor& param, const at::Tensor& loaded, at::ScalarType dtype, const std::string& name,
                       const std::string& key);

}  // namespace apex::optimizers::detail

// What a step asks of its parameters, before it changes any.
namespace apex::optimizers::detail {

/// "Parameter 2 of group 0, of shape [2, 3],": how errors begin.
std::string name_of(size_t group, size_t position, const at::Tensor& param);

/// A parameter that a step is to change, with what the step reads and writes beside it.
struct SteppedParam {
  size_t group;
  size_t position;
  const at::Tensor& param;
  const at::Tensor& grad;
  const at::Tensor& copy;  // gets the new value too; undefined if there is none

  std::string name() const { return name_of(group, position, param); }
  /// Errors: RuntimeError naming the parameter, the value and the remedy for what the kernels do not take.
  void check() const;
};

/// Looks whether what a step writes lies apart in memory, anew where an address is not that of the last step.
class ApartInMemory {
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
  static void check_apart(const std::vector<SteppedParam>& params, std::vector<Span> spans);

  std::vector<Span> last_;
};

}  // namespace apex::optimizers::detail
