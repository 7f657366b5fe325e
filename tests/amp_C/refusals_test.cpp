// Invalid arguments change nothing, and the error names the called function, whichever kernels it runs.
#include "functions.h"

namespace {

using namespace amp_C_test;

Tensors two_tensors(at::ScalarType dtype = at::kFloat) {
  return {at::rand({5}).add(0.5).to(dtype), at::rand({5}).add(0.5).to(dtype)};
}

class Refusals : public testing::TestWithParam<Function> {
 protected:
  // Float32 lists, except for one.
  static TensorLists lists_with(size_t list, at::ScalarType dtype) {
    TensorLists lists;
    for (size_t i = 0; i < GetParam().depth; ++i) lists.push_back(two_tensors(i == list ? dtype : at::kFloat));
    return lists;
  }

  static void expect_refused(const TensorLists& lists, std::vector<std::string> parts) {
    parts.push_back("multi_tensor_" + GetParam().name.substr(0, GetParam().name.find('_')));
    const TensorLists before = clones(lists);
    const at::Tensor noop = flag();
    expect_error([&] { GetParam().call(noop, lists); }, parts);
    expect_equal(lists, before);
    EXPECT_EQ(noop.item<int>(), 0);
  }

  static bool takes(size_t list, at::ScalarType dtype) {
    try {
      GetParam().call(flag(), lists_with(list, dtype));
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }

  // True if a call changes the tensors of the list.
  static bool is_output(size_t list) {
    const TensorLists lists = lists_with(list, at::kFloat);
    const Tensors before = clones(lists[list]);
    GetParam().call(flag(), lists);
    return !at::equal(lists[list][0], before[0]);
  }
};

std::string at_index(size_t list, int index) { return c10::str("tensor_lists[", list, "][", index, "] ("); }

TEST_P(Refusals, SharedMemoryOfOutputs) {
  for (size_t list = 0; list < GetParam().depth; ++list) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      if (!is_output(list) || !takes(list, dtype)) continue;
      SCOPED_TRACE(c10::str(dtype, " in list ", list));
      TensorLists lists = lists_with(list, dtype);
      lists[list][1] = lists[list][0];
      expect_refused(lists, {"_cuda: tensor_lists", at_index(list, 0), at_index(list, 1), "shares memory"});
    }
  }
}

TEST_P(Refusals, OneTensorAsTwoOutputs) {
  for (size_t list = 1; list < GetParam().depth; ++list) {
    for (size_t other = 0; other < list; ++other) {
      if (!is_output(list) || !is_output(other)) continue;
      SCOPED_TRACE(c10::str(list, " and ", other));
      TensorLists lists = lists_with(list, at::kFloat);
      lists[list][1] = lists[other][1];
      expect_refused(lists, {"_cuda: tensor_lists", at_index(list, 1), at_index(other, 1), "shares memory"});
    }
  }
}

TEST_P(Refusals, UnsupportedDtypes) {
  for (size_t list = 0; list < GetParam().depth; ++list) {
    SCOPED_TRACE(list);
    const bool takes_double = takes(list, at::kDouble);
    const std::string supported = takes_double ? "Half, BFloat16, Float and Double." : "Half, BFloat16 and Float.";
    expect_refused(lists_with(list, at::kInt), {"_cuda: " + at_index(list, 0), "has dtype Int. Supported are " + supported});
    if (takes_double) continue;
    expect_refused(lists_with(list, at::kDouble),
                   {"_cuda: " + at_index(list, 0), "has dtype Double. Supported are " + supported});
  }
}

INSTANTIATE_TEST_SUITE_P(, Refusals, testing::ValuesIn(functions()), [](const auto& test) { return test.param.name; });

}  // namespace
