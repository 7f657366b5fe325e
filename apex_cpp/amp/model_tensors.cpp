#include <apex_cpp/amp/model_tensors.h>

#include <ATen/core/grad_mode.h>

#include <apex_cpp/amp/low_precision.h>
#include <apex_cpp/amp/session.h>

namespace apex::amp::detail {

at::Tensor widened(const at::Tensor& tensor) {
  return is_low_precision(tensor.scalar_type()) ? tensor.detach().to(at::kFloat) : tensor;
}

void assign(at::Tensor tensor, const at::Tensor& value, const Session* session) {
  const at::NoGradGuard no_grad;
  tensor.copy_(value);
  const at::Tensor master = session ? session->master_of(tensor) : at::Tensor();
  if (master.defined()) master.copy_(value);
}

}  // namespace apex::amp::detail
