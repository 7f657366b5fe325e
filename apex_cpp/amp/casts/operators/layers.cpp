#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/operators/operators.h>
#include <apex_cpp/amp/casts/operators/statistics_kernel.h>
#include <apex_cpp/amp/casts/unboxed_kernel.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

using Normalizations = Operators<op::layer_norm, op::native_layer_norm, op::group_norm, op::native_group_norm, op::rms_norm>;
using Resampling =
    Operators<op::upsample_nearest1d_vec, op::upsample_nearest1d, op::upsample_nearest2d_vec, op::upsample_nearest2d,
              op::upsample_nearest3d_vec, op::upsample_nearest3d, op::_upsample_nearest_exact1d_vec,
              op::_upsample_nearest_exact1d, op::_upsample_nearest_exact2d_vec, op::_upsample_nearest_exact2d,
              op::_upsample_nearest_exact3d_vec, op::_upsample_nearest_exact3d, op::upsample_linear1d_vec,
              op::upsample_linear1d, op::upsample_bilinear2d_vec, op::upsample_bilinear2d, op::upsample_bicubic2d_vec,
              op::upsample_bicubic2d, op::upsample_trilinear3d_vec, op::upsample_trilinear3d, op::_upsample_bilinear2d_aa_vec,
              op::_upsample_bilinear2d_aa, op::_upsample_bicubic2d_aa_vec, op::_upsample_bicubic2d_aa, op::grid_sampler>;
using Losses = Operators<op::binary_cross_entropy, op::binary_cross_entropy_with_logits, op::cosine_embedding_loss,
                         op::cross_entropy_loss, op::ctc_loss_IntList, op::ctc_loss_Tensor, op::hinge_embedding_loss,
                         op::huber_loss, op::kl_div, op::l1_loss, op::margin_ranking_loss, op::mse_loss, op::multi_margin_loss,
                         op::multilabel_margin_loss, op::nll_loss, op::nll_loss2d, op::nll_loss_nd, op::poisson_nll_loss,
                         op::smooth_l1_loss, op::soft_margin_loss, op::triplet_margin_loss>;

}  // namespace

void register_layers(torch::Library& aten) {
  StatisticsKernel<op::batch_norm>::register_in(aten);
  StatisticsKernel<op::instance_norm>::register_in(aten);
  Normalizations::register_in(aten);
  Resampling::register_in(aten);
  Losses::register_in(aten);
}

}  // namespace apex::amp::detail
