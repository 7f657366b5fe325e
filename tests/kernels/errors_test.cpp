// Mismatched lists are errors that name the tensor, before anything changes (MTA-02..04, BUG-22).
#include <gtest/gtest.h>

#include "kernels/optimizers.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
using kernels::CheckArg;

void scale(const Tensors& in, const Tensors& out) { kernels::multi_tensor_scale(clear_flag(), in, out, 2.0); }

TEST(Errors, NameListsOfDifferentLengths) {
  expect_error(
      [] {
        scale({at::ones({2}), at::ones({2})}, {at::ones({2})});
      },
      {"multi_tensor_scale", "size mismatch", "in has 2 tensors", "out has 1"});
  expect_error([] { kernels::multi_tensor_axpby(clear_flag(), {at::ones({2})}, {}, {at::ones({2})}, 1, 1, CheckArg::x); },
               {"multi_tensor_axpby", "x has 1 tensors", "y has 0"});
}

TEST(Errors, RefuseToWriteATensorOfInferenceModeOutsideOfIt) {
  at::Tensor out;
  {
    const c10::InferenceMode on;
    out = at::zeros({4});
  }
  expect_error([&] { scale({at::ones({4})}, {out}); }, {"multi_tensor_scale", "out[0] was made in inference mode"});
  EXPECT_TRUE(out.equal(at::zeros({4})));
  const c10::InferenceMode on;
  scale({at::ones({4})}, {out});
  EXPECT_TRUE(out.equal(at::full({4}, 2)));
}

// So many that threads share the work, which have no inference mode of their own.
TEST(Errors, AreNoneForManyTensorsOfInferenceModeInIt) {
  const Threads four(4);
  const c10::InferenceMode on;
  std::vector<at::Tensor> in, out;
  for (int i = 0; i < 5000; ++i) {
    in.push_back(at::ones({1}));
    out.push_back(at::zeros({1}));
  }
  scale(in, out);
  EXPECT_TRUE(at::cat(out).equal(at::full({5000}, 2)));
}

// Also where the call is remembered from inference mode.
TEST(Errors, RefuseToWriteATensorOfInferenceModeAfterACallInIt) {
  const at::Tensor in = at::ones({4});
  at::Tensor out;
  {
    const c10::InferenceMode on;
    out = at::zeros({4});
    scale({in}, {out});
  }
  in.fill_(3);
  expect_error([&] { scale({in}, {out}); }, {"multi_tensor_scale", "out[0] was made in inference mode"});
  EXPECT_TRUE(out.equal(at::full({4}, 2)));
}

TEST(Errors, NameTensorsOfDifferentNumel) {
  expect_error(
      [] {
        scale({at::ones({2}), at::ones({2, 3})}, {at::ones({2}), at::ones({5})});
      },
      {"in[1] has 6 elements (sizes [2, 3])", "out[1] has 5 (sizes [5])"});
}

TEST(Errors, NameUnsupportedDtypes) {
  expect_error(
      [] {
        scale({at::ones({2}), at::ones({2}, at::kLong)}, {at::ones({2}), at::ones({2})});
      },
      {"in[1] has dtype Long", "Half, BFloat16, Float and Double"});
  expect_error([] { kernels::multi_tensor_copy({at::ones({2})}, {at::ones({2}, at::kInt)}); },
               {"multi_tensor_copy", "to[0] has dtype Int"});
  expect_error([] { kernels::multi_tensor_l2norm(clear_flag(), {at::ones({2}, at::kComplexFloat)}, true); },
               {"multi_tensor_l2norm", "in[0] has dtype ComplexFloat"});
  for (const auto dtype : {at::kInt, at::kDouble}) {
    expect_error([&] { kernels::multi_tensor_sgd({at::ones({2})}, {at::ones({2}, dtype)}, {}, {}, {}); },
                 {"multi_tensor_sgd: params[0] has dtype", "Supported are Half, BFloat16 and Float."});
  }
}

TEST(Errors, NameUndefinedTensors) {
  expect_error([] { scale({at::ones({2}), at::Tensor()}, {at::ones({2}), at::ones({2})}); }, {"in[1] is undefined"});
}

TEST(Errors, NameSparseTensors) {
  expect_error([] { scale({at::eye(3).to_sparse()}, {at::ones({3, 3})}); }, {"in[0] has layout Sparse", "to_dense()"});
}

TEST(Errors, NameTensorsWithGapsOrRepeats) {
  expect_error(
      [] {
        scale({at::ones({4, 4}).slice(1, 0, 2)}, {at::ones({4, 2})});
      },
      {"in[0] with sizes [4, 2] and strides [4, 1]", "contiguous()"});
  expect_error([] { scale({at::ones({1}).expand({5})}, {at::ones({5})}); }, {"in[0]", "strides [0]"});
}

TEST(Errors, NameNegatedViews) {
  const at::Tensor in = at::ones({2}), out = at::zeros({2});
  const at::Tensor negated = at::_neg_view(in);
  for (int i = 0; i < 2; ++i) {
    expect_error([&] { scale({negated}, {out}); }, {"multi_tensor_scale", "in[0] is a negated view", "resolve_neg()"});
    EXPECT_TRUE(out.equal(at::full({2}, 2.0 * i)));
    scale({in}, {out});  // its plan is kept, and must not serve the view of the same memory
  }
}

TEST(Errors, NameDifferentLayouts) {
  expect_error(
      [] {
        scale({at::ones({2, 3, 4, 5})}, {at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)});
      },
      {"in[0] has sizes [2, 3, 4, 5] and strides [60, 20, 5, 1]", "out[0]", "strides [60, 1, 15, 3]", "same memory layout"});
  expect_error([] { scale({at::ones({3, 4}).t()}, {at::ones({3, 4})}); }, {"in[0]", "out[0]", "same memory layout"});
}

TEST(Errors, NameDifferentDevices) {
  expect_error([] { scale({at::ones({2})}, {at::ones({2}, at::TensorOptions().device(at::kMeta))}); },
               {"in[0] is on cpu", "out[0] on meta", "same device"});
}

TEST(Errors, NameOutputsGivenTwice) {
  const at::Tensor out = at::ones({4});
  expect_error([&] { scale({at::ones({4}), at::ones({4})}, {out, out}); }, {"out[", "shares memory with out["});
}

TEST(Errors, NameOutputsThatOverlap) {
  const at::Tensor memory = at::ones({10});
  expect_error(
      [&] {
        scale({at::ones({6}), at::ones({6})}, {memory.narrow(0, 0, 6), memory.narrow(0, 4, 6)});
      },
      {"out[1]", "shares memory with out[0]"});
}

TEST(Errors, NameAnOutputThatIsTheInputOfAnotherIndex) {
  const at::Tensor a = at::ones({4});
  const at::Tensor b = at::ones({4});
  expect_error([&] { scale({a, b}, {b, at::ones({4})}); }, {"out[0]", "shares memory with in[1]"});
}

TEST(Errors, NameAnOutputThatCoversPartOfItsInput) {
  const at::Tensor memory = at::ones({10});
  expect_error([&] { scale({memory.narrow(0, 0, 6)}, {memory.narrow(0, 1, 6)}); }, {"out[0]", "shares memory with in[0]"});
}

TEST(Errors, NameAnOutputThatReinterpretsItsInput) {
  const at::Tensor in = at::ones({8}, at::kFloat);
  const at::Tensor out = in.view(at::kHalf).narrow(0, 0, 8);
  expect_error([&] { scale({in}, {out}); }, {"out[0]", "shares memory with in[0]", "element size"});
}

TEST(Errors, NameTheOutputThatAnInputOverlaps) {
  // The overlapping input comes behind others in memory and in the lists.
  const at::Tensor memory = at::ones({40});
  const Tensors in = {memory.narrow(0, 30, 5), memory.narrow(0, 12, 10), memory.narrow(0, 0, 3)};
  const Tensors out = {at::ones({5}), memory.narrow(0, 20, 10), at::ones({3})};
  expect_error([&] { scale(in, out); }, {"out[1]", "shares memory with in[1]"});
}

TEST(Errors, DoNotCountTouchingTensorsAsOverlapping) {
  const at::Tensor memory = at::ones({10});
  scale({memory.narrow(0, 0, 5)}, {memory.narrow(0, 5, 5)});
  EXPECT_TRUE(memory.narrow(0, 5, 5).eq(2).all().item<bool>());
}

TEST(Errors, NameAWrongFlag) {
  const Tensors list = {at::ones({2})};
  expect_error([&] { kernels::multi_tensor_scale(at::Tensor(), list, list, 2.0); },
               {"multi_tensor_scale: found_inf is undefined"});
  expect_error([&] { kernels::multi_tensor_check_finite(at::Tensor(), list); },
               {"multi_tensor_check_finite: found_inf is undefined"});
  expect_error([&] { kernels::multi_tensor_scale(at::zeros({1}), list, list, 2.0); },
               {"found_inf must be an Int tensor of one element, got Float with sizes [1]"});
  expect_error([&] { kernels::multi_tensor_l2norm(at::zeros({2}, at::kInt), list, false); }, {"got Int with sizes [2]"});
}

TEST(Errors, AreRaisedBeforeAnythingChanges) {
  const at::Tensor out = at::full({4}, 7.0f);
  const at::Tensor flag = clear_flag();
  const Tensors in = {at::full({4}, NAN), at::ones({3})};
  EXPECT_THROW(kernels::multi_tensor_scale(flag, in, Tensors{out, at::ones({2})}, 2.0), c10::Error);
  EXPECT_TRUE(out.eq(7).all().item<bool>());
  EXPECT_EQ(flag.item<int>(), 0);
}

}  // namespace
}  // namespace kernels_test
