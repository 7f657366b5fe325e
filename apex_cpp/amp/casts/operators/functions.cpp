#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/operators/operators.h>
#include <apex_cpp/amp/casts/unboxed_kernel.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

using Pointwise =
    Operators<op::acos, op::asin, op::cosh, op::erfinv, op::exp, op::expm1, op::log, op::log10, op::log1p, op::log2,
              op::pow_Tensor_Tensor, op::pow_Scalar, op::pow_Tensor_Scalar, op::reciprocal, op::rsqrt, op::sinh, op::tan>;
using Activations = Operators<op::prelu, op::gelu, op::softplus, op::softmax_int, op::log_softmax_int>;
using Sums = Operators<op::cumprod, op::cumsum, op::prod, op::prod_dim_int, op::sum, op::sum_dim_IntList, op::logsumexp>;
using Deviations = Operators<op::std, op::std_dim, op::std_correction, op::var, op::var_dim, op::var_correction>;
using Norms = Operators<op::norm_Scalar, op::norm_ScalarOpt_dtype, op::norm_ScalarOpt_dim, op::norm_ScalarOpt_dim_dtype,
                        op::linalg_norm, op::linalg_norm_ord_str, op::linalg_vector_norm, op::linalg_matrix_norm,
                        op::linalg_matrix_norm_str_ord, op::frobenius_norm_dim, op::nuclear_norm, op::nuclear_norm_dim,
                        op::dist, op::cdist, op::pdist, op::renorm, op::cosine_similarity>;

}  // namespace

void register_functions(torch::Library& aten) {
  Pointwise::register_in(aten);
  Activations::register_in(aten);
  Sums::register_in(aten);
  Deviations::register_in(aten);
  Norms::register_in(aten);
}

}  // namespace apex::amp::detail
