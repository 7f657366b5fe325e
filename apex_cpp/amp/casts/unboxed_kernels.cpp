#include <apex_cpp/amp/casts/cast_kernels.h>
#include <apex_cpp/amp/casts/float8_forms.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/tensor_version.h>
#include <apex_cpp/torch_compat/autograd.h>

#include <ATen/Operators.h>
#include <torch/library.h>

#include <array>

// Unboxed kernels for all ATen operators of the built-in cast lists. The lists, not this file, choose the policies.
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

void register_arithmetic(torch::Library& aten) {
  Arithmetic::register_in(aten);
  Comparisons::register_in(aten);
  Sequences::register_in(aten);
  Scatters::register_in(aten);
  InPlaceScatters::register_in(aten);
  InPlaceArithmetic::register_in(aten);
  InPlaceFunctions::register_in(aten);
}

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

void register_functions(torch::Library& aten) {
  Pointwise::register_in(aten);
  Activations::register_in(aten);
  Sums::register_in(aten);
  Deviations::register_in(aten);
  Norms::register_in(aten);
}

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

void register_layers(torch::Library& aten) {
  StatisticsKernel<op::batch_norm>::register_in(aten);
  StatisticsKernel<op::instance_norm>::register_in(aten);
  Normalizations::register_in(aten);
  Resampling::register_in(aten);
  Losses::register_in(aten);
}

// Overloads with named dimensions, which later versions of LibTorch no longer have.
#if __has_include(<ATen/core/Dimname.h>)
using Named =
    Operators<op::cat_names, op::concat_names, op::concatenate_names, op::index_add_dimname, op::index_copy_dimname,
              op::scatter_add_dimname, op::softmax_Dimname, op::log_softmax_Dimname, op::cumprod_dimname, op::cumsum_dimname,
              op::cumprod__dimname, op::cumsum__dimname, op::prod_dim_Dimname, op::sum_dim_DimnameList, op::logsumexp_names,
              op::std_names_dim, op::std_correction_names, op::var_names_dim, op::var_correction_names,
              op::norm_names_ScalarOpt_dim, op::norm_names_ScalarOpt_dim_dtype>;

void register_named(torch::Library& aten) { Named::register_in(aten); }
#else
void register_named(torch::Library&) {}
#endif

using Bmm = UnboxedKernel<at::_ops::bmm>;
using Cat = UnboxedKernel<at::_ops::cat>;

// LibTorch's attention views [time, batch, heads * features] as [time, batch * heads, features] and swaps the first two
// dimensions. Queries and values lie so in memory, and keys before their last two dimensions are swapped. Nested and compressed
// sparse tensors have no strides.
bool lies_as_heads(const at::Tensor& tensor, int64_t time = 1, int64_t features = 2) {
  if (tensor.is_nested() || tensor.layout() != at::kStrided) return false;
  return tensor.dim() == 3 && tensor.stride(features) == 1 && tensor.stride(0) == tensor.size(features) &&
         tensor.stride(time) == tensor.size(0) * tensor.size(features);
}

bool is_low(const at::Tensor& tensor) { return kLowTypes.has(tensor.scalar_type()); }

// The last keys and values on this thread that `add_zero_attn` extended by a step of zeros. Their layout is that of any result
// of `cat`.
class WithZeroStep {
 public:
  void add(const at::Tensor& tensor) {
    made_[next_] = TensorVersion(tensor);
    next_ = (next_ + 1) % made_.size();
  }
  bool has(const at::Tensor& tensor) const { return made_[0].same_memory(tensor) || made_[1].same_memory(tensor); }

 private:
  std::array<TensorVersion, 2> made_;
  size_t next_ = 0;
};

WithZeroStep& with_zero_step() {
  thread_local WithZeroStep instance;
  return instance;
}

bool adds_a_step(const at::ITensorListRef& tensors, int64_t dim) {
  if (dim != 1 || tensors.size() != 2) return false;
  const at::Tensor& heads = *tensors.begin();
  const at::Tensor& step = *++tensors.begin();
  return lies_as_heads(heads) && step.dim() == 3 && step.size(1) == 1 && !step.requires_grad();
}

bool are_keys(const at::Tensor& tensor) {
  return lies_as_heads(tensor, 2, 1) || (tensor.stride(1) == 1 && with_zero_step().has(tensor));
}

// Whether the rules cast the product: in the program's own forward pass, with casts on.
bool is_attention_listed() {
  const auto& here = thread_casts();
  const auto* rules = rules_in_force(here).rules;
  if (!rules || rules->policy(*Bmm::slot) != CastPolicy::half) return false;
  const bool off = here.disabled && rules->mode() == CastRules::Mode::casts;
  return torch_compat::graph_task() == here.graph_task && !off;
}

bool are_scores(const at::Tensor& product, const at::Tensor& queries, const at::Tensor& keys) {
  return is_low(product) && lies_as_heads(queries) && are_keys(keys) && is_attention_listed();
}

at::Tensor bmm(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor product = Bmm::call(keys, self, other);
  return are_scores(product, self, other) ? product.to(at::kFloat) : product;
}

at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim) {
  const at::Tensor result = Cat::call(keys, tensors, dim);
  if (adds_a_step(tensors, dim)) with_zero_step().add(result);
  return result;
}

// The kernel of `aten::bmm` is that of every listed product with one exception. The scores of `torch::nn::MultiheadAttention`,
// the product of queries and keys that both lie in memory as heads, are returned in FP32 where the program would get 16 bits,
// because LibTorch's next step, the fill for a `key_padding_mask`, does not support 16-bit types. The values are those of the
// 16-bit product. The softmax that follows runs in FP32, as at O1, and the product with the values is 16-bit again. No
// exception while casts are off. Also registers the kernel of `aten::cat`: only `cat` shows which keys `add_zero_attn` has
// extended.
void register_attention_scores(torch::Library& aten) {
  Bmm::slot = &operator_slot(at::_ops::bmm::name, at::_ops::bmm::overload_name);
  aten.impl(Bmm::slot->name.c_str(), TORCH_FN(bmm));
  Cat::slot = &operator_slot(at::_ops::cat::name, at::_ops::cat::overload_name);
  aten.impl(Cat::slot->name.c_str(), TORCH_FN(cat));
}

using Convolutions = Operators<op::conv1d, op::conv1d_padding, op::conv2d, op::conv2d_padding, op::conv3d, op::conv3d_padding,
                               op::conv_transpose1d, op::conv_transpose2d_input, op::conv_transpose3d_input, op::conv_tbc,
                               op::convolution, op::_convolution, op::_convolution_deprecated>;
using Products = Operators<op::linear, op::bilinear, op::addmm, op::addmv, op::addr, op::matmul, op::mm, op::mv, op::addbmm,
                           op::baddbmm, op::dot, op::vdot, op::inner, op::tensordot, op::einsum, op::chain_matmul,
                           op::linalg_multi_dot, op::linalg_vecdot, op::cross, op::linalg_cross>;
using Attention = Operators<op::scaled_dot_product_attention, op::_scaled_dot_product_flash_attention>;

void register_products(torch::Library& aten) {
  Convolutions::register_in(aten);
  Products::register_in(aten);
  register_attention_scores(aten);
  Attention::register_in(aten);
}

void register_all(torch::Library& aten) {
  register_products(aten);
  register_functions(aten);
  register_layers(aten);
  register_arithmetic(aten);
  register_named(aten);
}

const AtenKernels& unboxed_kernels() {
  static const AtenKernels kernels(kCastKey, register_all);
  return kernels;
}

[[maybe_unused]] const AtenKernels& unboxed_at_load = unboxed_kernels();

}  // namespace

void register_unboxed_kernels() {
  unboxed_kernels();
  check_only_copy();
}

}  // namespace apex::amp::detail
