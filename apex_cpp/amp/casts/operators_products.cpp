#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/attention_scores.h>
#include <apex_cpp/amp/casts/operators.h>
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
using Recurrent =
    Operators<op::rnn_relu_input, op::rnn_relu_data, op::rnn_tanh_input, op::rnn_tanh_data, op::gru_input, op::gru_data,
              op::lstm_input, op::lstm_data, op::rnn_relu_cell, op::rnn_tanh_cell, op::gru_cell, op::lstm_cell>;

}  // namespace

void register_products(torch::Library& aten) {
  Convolutions::register_in(aten);
  Products::register_in(aten);
  register_attention_scores(aten);
  Attention::register_in(aten);
  Recurrent::register_in(aten);
}

}  // namespace apex::amp::detail
