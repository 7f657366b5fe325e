#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/operators/operators.h>
#include <apex_cpp/amp/casts/unboxed_kernel.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

using Arithmetic =
    Operators<op::add_Tensor, op::sub_Tensor, op::rsub_Tensor, op::mul_Tensor, op::div_Tensor, op::div_Tensor_mode,
              op::true_divide_Tensor, op::addcdiv, op::addcmul, op::atan2, op::lerp_Scalar, op::lerp_Tensor>;
using Comparisons =
    Operators<op::eq_Tensor, op::ne_Tensor, op::lt_Tensor, op::le_Tensor, op::gt_Tensor, op::ge_Tensor, op::equal>;
using Sequences = Operators<op::concat, op::concatenate, op::stack>;
using Scatters = Operators<op::index_add, op::index_copy, op::index_put, op::index_reduce, op::masked_scatter, op::put,
                           op::scatter_src, op::scatter_add, op::scatter_reduce_two>;
using InPlaceScatters = Operators<op::index_add_, op::index_copy_, op::index_put_, op::index_reduce_, op::masked_scatter_,
                                  op::put_, op::scatter__src, op::scatter_add_, op::scatter_reduce__two>;
using InPlaceArithmetic =
    Operators<op::add__Tensor, op::sub__Tensor, op::mul__Tensor, op::div__Tensor, op::div__Tensor_mode, op::true_divide__Tensor,
              op::addcdiv_, op::addcmul_, op::atan2_, op::lerp__Scalar, op::lerp__Tensor, op::addmm_, op::addmv_, op::addr_,
              op::addbmm_, op::baddbmm_, op::eq__Tensor, op::ne__Tensor, op::lt__Tensor, op::le__Tensor, op::gt__Tensor,
              op::ge__Tensor>;
using InPlaceFunctions = Operators<op::acos_, op::asin_, op::cosh_, op::cumprod_, op::cumsum_, op::erfinv_, op::exp_,
                                   op::expm1_, op::log_, op::log10_, op::log2_, op::pow__Scalar, op::pow__Tensor,
                                   op::reciprocal_, op::renorm_, op::rsqrt_, op::sinh_, op::tan_>;

}  // namespace

void register_arithmetic(torch::Library& aten) {
  Arithmetic::register_in(aten);
  Comparisons::register_in(aten);
  Sequences::register_in(aten);
  Scatters::register_in(aten);
  InPlaceScatters::register_in(aten);
  InPlaceArithmetic::register_in(aten);
  InPlaceFunctions::register_in(aten);
}

}  // namespace apex::amp::detail
