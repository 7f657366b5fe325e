// Groups are rebuilt exactly when something that they depend on changes (MTA-04).
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kernels/plan/reuse.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace plan = apex::kernels::plan;
using plan::Access;

plan::Groups groups_of(const Tensors& in, const Tensors& out, Access in_access = Access::read) {
  return plan::checked_groups("reuse", {{"in", in, in_access}, {"out", out, Access::write}});
}

class Reuse : public ::testing::Test {
 protected:
  Tensors in_ = {at::ones({4, 6}), at::ones({5}, at::kHalf)};
  Tensors out_ = {at::ones({4, 6}), at::ones({5})};
  plan::Groups first_ = groups_of(in_, out_);
};

TEST_F(Reuse, SameTensorsGetTheSameGroups) { EXPECT_EQ(groups_of(in_, out_), first_); }

TEST_F(Reuse, OtherTensorsWithTheSameMemoryGetTheSameGroups) {
  EXPECT_EQ(groups_of({in_[0].alias(), in_[1].alias()}, out_), first_);
}

TEST_F(Reuse, TheCallsOfAStepOverManyParameterGroupsAreKept) {
  std::vector<Tensors> params(48);
  for (Tensors& group : params) group = {at::ones({3})};
  std::vector<plan::Groups> made;
  for (const Tensors& group : params) made.push_back(groups_of(group, group));
  for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(groups_of(params[i], params[i]), made[i]) << i;
}

// Gradients may lie elsewhere at every step: plans over many tensors must not add up.
TEST_F(Reuse, FewCallsOverManyTensorsAreKept) {
  plan::forget_calls();
  const Tensors in(2000, at::ones({1}));
  std::vector<Tensors> outs;
  std::vector<std::weak_ptr<const plan::Plan>> plans;
  for (int i = 0; i < 20; ++i) {
    outs.push_back(at::ones({2000, 1}).unbind());
    plans.push_back(groups_of(in, outs.back()));
  }
  for (size_t i = 0; i < plans.size(); ++i) EXPECT_EQ(plans[i].expired(), i < 4) << i;
}

TEST_F(Reuse, NothingIsKeptOfForgottenCalls) {
  const std::weak_ptr<const plan::Plan> first = std::exchange(first_, nullptr);
  EXPECT_FALSE(first.expired());
  plan::forget_calls();
  EXPECT_TRUE(first.expired());
}

TEST_F(Reuse, OtherMemoryGetsOtherGroups) {
  const at::Tensor moved = in_[0].clone();
  const plan::Groups groups = groups_of({moved, in_[1]}, out_);
  EXPECT_NE(groups, first_);
  EXPECT_EQ((*groups)[0].rows[0].data[0], moved.data_ptr());
}

TEST_F(Reuse, NewDataOfTheSameTensorIsDetected) {
  const at::Tensor other = at::zeros({4, 6});
  in_[0].set_data(other);
  EXPECT_EQ((*groups_of(in_, out_))[0].rows[0].data[0], other.data_ptr());
}

TEST_F(Reuse, AnotherNumberOfTensorsIsDetected) {
  EXPECT_EQ((*groups_of({in_[0]}, {out_[0]})).size(), 1u);
  EXPECT_EQ((*groups_of({}, {})).size(), 0u);
}

// One list of all the tensors that a call had in two: a call over them reads them all.
TEST_F(Reuse, AnotherNumberOfListsIsDetected) {
  const Tensors all = {in_[0], in_[1], out_[0], out_[1]};
  const plan::Groups groups = plan::checked_groups("reuse", {{"in", all, Access::read}});
  EXPECT_EQ(groups->count, 4u);
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0].rows.size(), 3u) << "of float32";
  EXPECT_EQ((*groups)[1].rows.size(), 1u) << "of float16";
}

TEST_F(Reuse, AnotherDtypeOfTheSameMemoryIsDetected) {
  EXPECT_EQ((*groups_of({in_[0], in_[1].view(at::kBFloat16)}, out_))[1].dtypes[0], at::kBFloat16);
}

TEST_F(Reuse, AnotherAccessIsDetected) { EXPECT_NE(groups_of(in_, out_, Access::write), first_); }

// A copy takes float64, and an update of the same lists does not.
TEST_F(Reuse, AnUnsupportedDtypeIsDetected) {
  const Tensors in = {at::ones({4})}, out = {at::ones({4}, at::kDouble)};
  groups_of(in, out);
  expect_error(
      [&] {
        plan::checked_groups("reuse", {{"in", in, Access::read}, {"out", out, Access::write, false}});
      },
      {"out[0] has dtype Double"});
  EXPECT_EQ(plan::checked_groups("reuse", {{"in", in_, Access::read}, {"out", out_, Access::write, false}}), first_);
}

// The layouts of one index must agree, also if the addresses are those of a call where they did.
TEST_F(Reuse, AnotherLayoutOfTheSameMemoryIsDetected) {
  expect_error([&] { groups_of({in_[0].t(), in_[1]}, {out_[0].view({6, 4}), out_[1]}); }, {"memory layout"});
  const Tensors turned_in = {in_[0].t()}, turned_out = {out_[0].t()};
  const plan::Groups turned = groups_of(turned_in, turned_out);
  EXPECT_EQ(groups_of(turned_in, turned_out), turned);
  expect_error([&] { groups_of(turned_in, {out_[0].view({6, 4})}); }, {"memory layout"});
}

TEST_F(Reuse, AFailedCheckIsNotRemembered) {
  for (int i = 0; i < 2; ++i) expect_error([&] { groups_of(in_, {out_[0], at::ones({6})}); }, {"out[1]"});
}

// A copy-on-write clone made after the first call must not be written to.
TEST_F(Reuse, ACopyOnWriteCloneKeepsItsValues) {
  const at::Tensor clone = at::_lazy_clone(out_[0]);
  apex::kernels::multi_tensor_copy({in_[0]}, {out_[0]});
  in_[0].fill_(3);
  const at::Tensor second = at::_lazy_clone(out_[0]);
  apex::kernels::multi_tensor_copy({in_[0]}, {out_[0]});
  EXPECT_TRUE(second.eq(1).all().item<bool>());
  EXPECT_TRUE(out_[0].eq(3).all().item<bool>());
}

// A copy-on-write tensor that an in-place call moves is read at its new address, by this call and by calls that reuse its
// groups.
TEST_F(Reuse, ACopyOnWriteTensorIsReadAfterItsCopy) {
  const at::Tensor x = at::ones({24}), flag = at::zeros({1}, at::kInt);
  const at::Tensor clone = at::_lazy_clone(x);
  apex::kernels::multi_tensor_scale(flag, {x}, {x}, 2);
  EXPECT_TRUE(x.eq(2).all().item<bool>());
  x.fill_(3);
  apex::kernels::multi_tensor_scale(flag, {x}, {x}, 2);
  EXPECT_TRUE(x.eq(6).all().item<bool>());
  EXPECT_TRUE(clone.eq(1).all().item<bool>());
}

TEST_F(Reuse, ManyOtherCallsDoNotLeaveStaleGroups) {
  for (int i = 0; i < 40; ++i) {
    const Tensors in = {at::ones({i + 1})}, out = {at::ones({i + 1})};
    EXPECT_EQ((*groups_of(in, out))[0].numel, i + 1);
  }
  EXPECT_EQ((*groups_of(in_, out_))[0].numel, 24);
}

}  // namespace
}  // namespace kernels_test
