#include <torch/library.h>

#include <apex_cpp/amp/casts/operators/operators.h>

// Overloads that name dimensions. A later LibTorch has none.
#if __has_include(<ATen/core/Dimname.h>)

#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/unboxed_kernel.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

using Named =
    Operators<op::cat_names, op::concat_names, op::concatenate_names, op::index_add_dimname, op::index_copy_dimname,
              op::scatter_add_dimname, op::softmax_Dimname, op::log_softmax_Dimname, op::cumprod_dimname, op::cumsum_dimname,
              op::cumprod__dimname, op::cumsum__dimname, op::prod_dim_Dimname, op::sum_dim_DimnameList, op::logsumexp_names,
              op::std_names_dim, op::std_correction_names, op::var_names_dim, op::var_correction_names,
              op::norm_names_ScalarOpt_dim, op::norm_names_ScalarOpt_dim_dtype>;

}  // namespace

void register_named(torch::Library& aten) { Named::register_in(aten); }

}  // namespace apex::amp::detail

#else

namespace apex::amp::detail {

void register_named(torch::Library&) {}

}  // namespace apex::amp::detail

#endif
