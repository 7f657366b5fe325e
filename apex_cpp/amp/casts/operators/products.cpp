#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/operators/attention_scores.h>
#include <apex_cpp/amp/casts/operators/operators.h>
#include <apex_cpp/amp/casts/unboxed_kernel.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

using Convolutions = Operators<op::conv1d, op::conv1d_padding, op::conv2d, op::conv2d_padding, op::conv3d, op::conv3d_padding,
                               op::conv_transpose1d, op::conv_transpose2d_input, op::conv_transpose3d_input, op::conv_tbc,
                               op::convolution, op::_convolution, op::_convolution_deprecated>;
using Products = Operators<op::linear, op::bilinear, op::addmm, op::addmv, op::addr, op::matmul, op::mm, op::mv, op::addbmm,
                           op::baddbmm, op::dot, op::vdot, op::inner, op::tensordot, op::einsum, op::chain_matmul,
                           op::linalg_multi_dot, op::linalg_vecdot, op::cross, op::linalg_cross>;
using Attention = Operators<op::scaled_dot_product_attention, op::_scaled_dot_product_flash_attention>;

}  // namespace

void register_products(torch::Library& aten) {
  Convolutions::register_in(aten);
  Products::register_in(aten);
  register_attention_scores(aten);
  Attention::register_in(aten);
}

}  // namespace apex::amp::detail
