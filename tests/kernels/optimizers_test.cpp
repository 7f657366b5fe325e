// Every optimizer update against its formula in exact arithmetic (K-SGD, K-ADAM*, K-ADAGRAD, K-NOVO, K-LAMB, LARC-02), and what
// their common guarantees: bits that do not depend on instruction set, threads and alignment, and found_inf.
#include <gtest/gtest.h>

#include "tests/kernels/optimizer_cases.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

const std::vector<int64_t> kSizes = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 511, 513, 1023, 1024, 1025};
const Storage kMasters = {at::kHalf, at::kFloat, at::kFloat, at::kHalf};

class Update : public ::testing::TestWithParam<Case> {};

// Half the distance between adjacent values: 2^-p of the value with p significant bits, or of the smallest normal value.
double rounding_to(at::ScalarType dtype, double value) {
  if (dtype == at::kHalf) return std::max(std::abs(value) * 0x1p-11, 0x1p-25);
  if (dtype == at::kBFloat16) return std::max(std::abs(value) * 0x1p-8, 0x1p-134);
  return 0;  // already part of the arithmetic's bound
}

void expect_within_bounds(const at::Tensor& actual, const Elements& expected, Bounded Element::*member, const char* list) {
  const at::Tensor values = actual.to(at::kDouble);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Bounded exact = expected[i].*member;
    const double value = values.const_data_ptr<double>()[i];
    const double bound = exact.error + rounding_to(actual.scalar_type(), std::abs(exact.value) + exact.error);
    ASSERT_LE(std::abs(value - exact.value), bound)
        << list << ", element " << i << " of " << expected.size() << ": " << value << " is not " << exact.value;
    ASSERT_LT(exact.error, 2e-4 * (1 + std::abs(exact.value))) << list << ": the bound says nothing";
  }
}

void expect_exact_update(const Case& update, const Storage& storage, const std::vector<int64_t>& sizes) {
  SCOPED_TRACE(storage.name());
  Problem problem = make_problem(update, storage, sizes);
  const Problem before = problem.copy();
  update.step(problem, clear_flag());
  for (size_t t = 0; t < sizes.size(); ++t) {
    Elements expected = elements_of(before, t);
    update.reference(expected, before.norms.defined() ? before.norms[static_cast<int64_t>(t)].item<double>() : 0.0);
    expect_within_bounds(problem.params[t], expected, &Element::param, "params");
    if (update.writes_grads) expect_within_bounds(problem.grads[t], expected, &Element::grad, "grads");
    if (update.states > 0) expect_within_bounds(problem.first[t], expected, &Element::first, "first state");
    if (update.states > 1) expect_within_bounds(problem.second[t], expected, &Element::second, "second state");
    if (!problem.models.empty()) {
      EXPECT_TRUE(same_bits(problem.models[t], problem.params[t].to(storage.model)));
    }
  }
  EXPECT_TRUE(update.writes_grads ? same_bytes(problem.params, before.params) : same_bytes(problem.grads, before.grads));
}

TEST_P(Update, IsWithinTheErrorBoundOfItsFormulaForEveryDtypeMix) {
  for (const Storage& storage : storages()) ASSERT_NO_FATAL_FAILURE(expect_exact_update(GetParam(), storage, kSizes));
}

TEST_P(Update, IsWithinTheErrorBoundAroundChunkBoundaries) {
  expect_exact_update(GetParam(), kMasters, {65535, 65536, 65537, 2 * 65536 + 1});
}

TEST_P(Update, HasTheSameBitsUnderEveryIsaAndNumberOfThreads) {
  for (const Storage& storage :
       {kMasters, Storage{at::kBFloat16, at::kBFloat16, at::kFloat, at::kDouble},
        Storage{at::kHalf, at::kHalf, at::kFloat, at::kDouble}, Storage{at::kFloat, at::kFloat, at::kFloat, at::kBFloat16}}) {
    const Problem problem = make_problem(GetParam(), storage, boundary_sizes(), /*offset=*/3);
    expect_same_everywhere([&] {
      Problem work = problem.copy();
      GetParam().step(work, clear_flag());
      return work.all();
    });
  }
}

TEST_P(Update, HasTheSameBitsAtEveryAlignmentAndWritesNothingElse) {
  const std::vector<int64_t> sizes = {37, 530};
  const Problem aligned = make_problem(GetParam(), kMasters, sizes);
  Problem expected = aligned.copy();
  GetParam().step(expected, clear_flag());
  for (const auto isa : available_isas()) {
    const UseIsa use(isa);
    for (int64_t offset = 1; offset < 32; ++offset) {
      // All lists are followed by more memory.
      Problem moved = aligned.copy();
      Tensors memory;
      for (Tensors* list : moved.lists()) {
        for (at::Tensor& tensor : *list) {
          memory.push_back(at::full({offset + tensor.numel() + 40}, 7, tensor.options()));
          tensor = memory.back().narrow(0, offset, tensor.numel()).copy_(tensor);
        }
      }
      GetParam().step(moved, clear_flag());
      ASSERT_TRUE(same_bytes(moved.all(), expected.all())) << kernels::cpu::name_of(isa) << ' ' << offset;
      for (const at::Tensor& whole : memory) {
        ASSERT_TRUE(whole.narrow(0, 0, offset).eq(7).all().item<bool>());
        ASSERT_TRUE(whole.narrow(0, whole.numel() - 40, 40).eq(7).all().item<bool>());
      }
    }
  }
}

// A skipped step changes no bit.
TEST_P(Update, ChangesNothingIfFoundInfIsSet) {
  for (const Storage& storage : storages()) {
    Problem problem = make_problem(GetParam(), storage, kSizes);
    Problem before = problem.copy();
    GetParam().step(problem, at::ones({1}, at::kInt));
    EXPECT_TRUE(same_bytes(problem.all(), before.all())) << storage.name();
  }
}

TEST_P(Update, WorksWithoutAFlag) {
  Problem problem = make_problem(GetParam(), kMasters, kSizes);
  Problem expected = problem.copy();
  GetParam().step(expected, clear_flag());
  GetParam().step(problem, at::Tensor());
  EXPECT_TRUE(same_bytes(problem.all(), expected.all()));
}

// The two passes of a step: a look at the gradients, which may raise the flag, and the update.
TEST_P(Update, ChangesNothingAfterAPassThatFoundANonFiniteGradient) {
  for (const double value : {static_cast<double>(INFINITY), -static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (const auto grad : {at::kHalf, at::kBFloat16, at::kFloat}) {
      Problem problem = make_problem(GetParam(), {grad, at::kFloat, at::kFloat, at::kHalf}, {1, 17, 530});
      for (size_t tensor = 0; tensor < 3; ++tensor) {
        const int64_t size = problem.grads[tensor].numel();
        for (const int64_t place : {int64_t{0}, size / 2, size - 1}) {
          Problem bad = problem.copy();
          bad.grads[tensor][place] = value;
          Problem before = bad.copy();
          const at::Tensor flag = clear_flag();
          kernels::multi_tensor_unscale_l2norm(flag, bad.grads, at::full({1}, kGradScale, at::kFloat), false);
          GetParam().step(bad, flag);
          ASSERT_EQ(flag.item<int>(), 1);
          ASSERT_TRUE(same_bytes(bad.all(), before.all())) << value << " at " << place << " of " << size;
        }
      }
    }
  }
}

TEST_P(Update, OfEmptyListsDoesNothing) {
  Problem problem = make_problem(GetParam(), kMasters, {});
  const at::Tensor flag = clear_flag();
  EXPECT_NO_THROW(GetParam().step(problem, flag));
  EXPECT_EQ(flag.item<int>(), 0);
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Optimizers, Update, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace kernels_test
