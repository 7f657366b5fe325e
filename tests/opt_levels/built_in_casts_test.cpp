#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "opt_levels/cast_lists.h"
#include "opt_levels/embedded.h"
#include "tests/libtorch_2_15.h"

// The built-in lists against Apex's tables, and against the operators that LibTorch has.
namespace apex::opt_levels::testing {
namespace {

using Policies = std::map<std::string, CastPolicy>;

const Policies& casts() { return CastLists::built_in().casts(); }

const CastLists& apex_own() {
  static const auto lists = CastLists::from_yaml_string("extensions: false");
  return lists;
}

struct BuiltInRow {
  const char* id;
  CastPolicy policy;
  const char* operators;  // without aten::
};

void PrintTo(const BuiltInRow& row, std::ostream* out) { *out << row.id; }

std::vector<std::string> names_of(const BuiltInRow& row) {
  std::istringstream words(row.operators);
  std::vector<std::string> names;
  for (std::string word; words >> word;) names.push_back("aten::" + word);
  return names;
}

// One row of Apex's tables each, with the operators of LibTorch that it comes down to.
const BuiltInRow kBuiltInRows[] = {
    {"fp16_convolutions", CastPolicy::half, "conv1d conv2d conv3d convolution _convolution"},
    {"fp16_transposed_convolutions", CastPolicy::half, "conv_transpose1d conv_transpose2d conv_transpose3d"},
    {"fp16_conv_tbc", CastPolicy::half, "conv_tbc"},
    {"fp16_linear", CastPolicy::half, "linear"},
    {"fp16_prelu", CastPolicy::half, "prelu"},
    {"fp16_blas", CastPolicy::half, "addmm addmv addr mm mv"},
    {"fp16_matmul", CastPolicy::half, "matmul"},
    {"fp16_batched_blas", CastPolicy::half, "bmm addbmm baddbmm"},
    {"fp16_rnns_RNN_01", CastPolicy::half, "rnn_relu rnn_tanh gru lstm"},
    {"fp16_rnn_cells_RNN_03", CastPolicy::half, "rnn_relu_cell rnn_tanh_cell gru_cell lstm_cell"},
    {"result_type_by_the_caller", CastPolicy::none, "addmm.dtype mm.dtype bmm.dtype baddbmm.dtype"},
    {"fp32_pointwise", CastPolicy::float32, "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan"},
    {"fp32_pow", CastPolicy::float32, "pow"},
    {"fp32_cumulative", CastPolicy::float32, "cumprod cumsum"},
    {"fp32_reductions", CastPolicy::float32, "prod sum"},
    {"fp32_norm", CastPolicy::float32, "norm linalg_vector_norm"},
    {"fp32_std_var", CastPolicy::float32, "std var"},
    {"fp32_dist_renorm", CastPolicy::float32, "dist renorm"},
    {"fp32_softmax", CastPolicy::float32, "softmax log_softmax"},
    {"fp32_softplus", CastPolicy::float32, "softplus"},
    {"fp32_gelu", CastPolicy::float32, "gelu"},
    {"fp32_normalizations", CastPolicy::float32, "layer_norm native_layer_norm group_norm native_group_norm"},
    {"fp32_cosine_similarity", CastPolicy::float32, "cosine_similarity"},
    {"fp32_interpolate", CastPolicy::float32,
     "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
     "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d "
     "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"},
    {"fp32_grid_sample", CastPolicy::float32, "grid_sampler"},
    {"fp32_cross_entropy", CastPolicy::float32, "cross_entropy_loss"},
    {"fp32_nll_loss", CastPolicy::float32, "nll_loss_nd nll_loss nll_loss2d"},
    {"fp32_losses", CastPolicy::float32,
     "poisson_nll_loss cosine_embedding_loss hinge_embedding_loss kl_div l1_loss mse_loss smooth_l1_loss "
     "margin_ranking_loss multilabel_margin_loss multi_margin_loss soft_margin_loss triplet_margin_loss "
     "binary_cross_entropy_with_logits"},
    {"fp32_ctc_loss", CastPolicy::float32, "ctc_loss"},
    {"promote_named", CastPolicy::promote, "addcdiv addcmul atan2 cross bilinear dot"},
    {"promote_arithmetic_O1_20", CastPolicy::promote,
     "add.Tensor div.Tensor div.Tensor_mode mul.Tensor sub.Tensor rsub.Tensor true_divide.Tensor"},
    {"promote_comparisons", CastPolicy::promote, "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor equal"},
    {"sequence_O1_08", CastPolicy::sequence, "cat stack concat concatenate"},
    {"inplace_of_fp32_O1_30", CastPolicy::float_inplace,
     "acos_ asin_ cosh_ exp_ expm1_ log_ log10_ log2_ reciprocal_ rsqrt_ sinh_ tan_ erfinv_ pow_ cumprod_ cumsum_ renorm_"},
    {"inplace_match_self_O1_33", CastPolicy::match_self,
     "addmm_ addmv_ addr_ addbmm_ baddbmm_ addcdiv_ addcmul_ atan2_ add_.Tensor div_.Tensor div_.Tensor_mode mul_.Tensor "
     "eq_.Tensor ne_.Tensor lt_.Tensor le_.Tensor gt_.Tensor ge_.Tensor"},
    {"inplace_operators_O1_21", CastPolicy::match_self, "sub_.Tensor true_divide_.Tensor"},
    {"banned_O1_40", CastPolicy::banned, "binary_cross_entropy"},
};

class ApexList : public ::testing::TestWithParam<BuiltInRow> {};

TEST_P(ApexList, HasTheRowsOperatorsWithOrWithoutExtensions) {
  for (const CastLists* lists : {&CastLists::built_in(), &apex_own()}) {
    for (const auto& name : names_of(GetParam())) {
      ASSERT_EQ(lists->casts().count(name), 1u) << name;
      EXPECT_EQ(lists->casts().at(name), GetParam().policy) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, ApexList, ::testing::ValuesIn(kBuiltInRows), [](const auto& test) { return test.param.id; });

// The other way round: beside its rows, Apex's lists hold only what keeps composite operators whole.
TEST(ApexLists, HaveNoOtherOperators_O1_10) {
  std::set<std::string> known;
  for (const BuiltInRow& row : kBuiltInRows) {
    for (const auto& name : names_of(row)) known.insert(name);
  }
  for (const auto& [name, policy] : apex_own().casts()) {
    EXPECT_EQ(known.count(name) == 0, policy == CastPolicy::opaque) << name;
  }
}

TEST(ApexLists, DoNotListOtherOperators_O1_41) {
  for (const char* name : {"mean", "relu", "sigmoid", "tanh", "batch_norm", "instance_norm", "embedding", "max_pool2d", "where",
                           "maximum", "add.Scalar", "add_.Scalar", "mul.Scalar", "eq.Scalar", "log_sigmoid"}) {
    EXPECT_EQ(casts().count(std::string("aten::") + name), 0u) << name;
  }
}

const BuiltInRow kExtensions[] = {
    {"products", CastPolicy::half,
     "einsum chain_matmul linalg_multi_dot linalg_vecdot tensordot inner scaled_dot_product_attention "
     "_scaled_dot_product_flash_attention"},
    {"steep_functions", CastPolicy::float32, "logsumexp log1p pdist cdist huber_loss"},
    {"norms", CastPolicy::float32, "linalg_norm linalg_matrix_norm nuclear_norm frobenius_norm"},
    {"mixed_arguments", CastPolicy::promote,
     "vdot scatter_add index_put masked_scatter scatter.src scatter.reduce embedding_bag scatter_reduce.two index_reduce put "
     "lerp"},
    {"mixed_writes", CastPolicy::match_self,
     "scatter_add_ index_add_ index_copy_ index_put_ masked_scatter_ scatter_.src scatter_.reduce scatter_reduce_.two "
     "index_reduce_ put_ "
     "lerp_"},
    {"no_16_bit_kernels", CastPolicy::widen,
     "linalg_inv inverse det linalg_svd linalg_solve cholesky fft_rfft stft quantile polar complex special_zeta"},
};

class Extension : public ::testing::TestWithParam<BuiltInRow> {};

TEST_P(Extension, IsOnlyInTheBuiltInLists) {
  const Policies& without = apex_own().casts();
  for (const auto& name : names_of(GetParam())) {
    ASSERT_EQ(casts().count(name), 1u) << name;
    EXPECT_EQ(casts().at(name), GetParam().policy) << name;
    const auto found = without.find(name);
    EXPECT_TRUE(found == without.end() || found->second == CastPolicy::opaque) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Extension, ::testing::ValuesIn(kExtensions), [](const auto& test) { return test.param.id; });

TEST(MatchList, HasEveryWeightedOperatorOfTheHalfList) {
  const auto& match = CastLists::built_in().match();
  for (const auto& [name, policy] : apex_own().casts()) {
    if (policy != CastPolicy::half) continue;
    ASSERT_EQ(match.count(name), 1u) << name;
    EXPECT_EQ(match.at(name), CastPolicy::half) << name;
  }
  EXPECT_EQ(match.at("aten::bilinear"), CastPolicy::half);
}

// Elsewhere too they may have 16-bit input and FP32 weights, which LibTorch takes: only 16-bit weights make the input follow.
TEST(MatchList, NormalizationsMatchOnlyTheirWeights) {
  const auto& match = CastLists::built_in().match();
  for (const char* name : {"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"}) {
    EXPECT_EQ(match.at(std::string("aten::") + name), CastPolicy::follow_weights) << name;
  }
}

TEST(MatchList, WidensTheSameOperatorsAsTheExtensions) {
  const auto& match = CastLists::built_in().match();
  for (const auto& [name, policy] : casts()) {
    if (policy != CastPolicy::widen) continue;
    ASSERT_EQ(match.count(name), 1u) << name;
    EXPECT_EQ(match.at(name), CastPolicy::widen) << name;
  }
}

TEST(MatchList, RunsEveryLossInFloat32) {
  const auto& match = CastLists::built_in().match();
  std::vector<std::string> losses{"aten::kl_div", "aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits"};
  for (const auto& [name, policy] : casts()) {
    if (name.find("_loss") != std::string::npos) losses.push_back(name);
  }
  EXPECT_GT(losses.size(), 18u);
  for (const auto& name : losses) {
    ASSERT_EQ(match.count(name), 1u) << name;
    EXPECT_EQ(match.at(name), CastPolicy::float32) << name;
  }
}

// What the dispatcher knows: `aten::add.Tensor`, `aten::mm`, … An operator's name alone is known if any overload is.
std::set<std::string> known_operators() {
  std::set<std::string> known;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.overload_name.find("out") != std::string::npos) continue;
    known.insert(op.name);
    known.insert(op.overload_name.empty() ? op.name : op.name + "." + op.overload_name);
  }
  return known;
}

TEST(BuiltInLists, NameOnlyOperatorsThatLibTorchHas) {
  const auto known = known_operators();
  for (const CastLists* lists : {&CastLists::built_in(), &apex_own()}) {
    for (const auto& policies : {lists->casts(), lists->match()}) {
      EXPECT_GT(policies.size(), 50u);
      for (const auto& [name, policy] : policies) EXPECT_EQ(known.count(name), ::test::is_dropped(name) ? 0u : 1u) << name;
    }
  }
}

TEST(BuiltInLists, MatchTheFile) {
  std::ifstream file(OPT_LEVELS_DIR "/casts.yaml");
  ASSERT_TRUE(file);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(embedded::casts, text.str());
}

}  // namespace
}  // namespace apex::opt_levels::testing
