#include <apex_cpp/amp/tensors/tensor_version.h>

#include <string>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using Names = amp::detail::WeakTensorMap<std::string>;

TEST(WeakTensorMap, KeepsOneValueATensor) {
  Names names;
  const at::Tensor a = torch::zeros(2), b = torch::zeros(2);
  names.set(a, "first");
  names.set(a, "second");
  ASSERT_TRUE(names.has(a));
  EXPECT_EQ(*names.find(a), "second");
  EXPECT_FALSE(names.has(b));
  EXPECT_EQ(names.at(b), "") << "at makes an empty one";
  names.at(b) = "of b";
  EXPECT_EQ(*names.find(b), "of b");
  names.erase(a);
  EXPECT_EQ(names.find(a), nullptr);
}

TEST(WeakTensorMap, DistinguishesTensorsThatShareMemory) {
  Names names;
  const at::Tensor a = torch::zeros(2);
  names.set(a, "a");
  EXPECT_FALSE(names.has(a.detach()));
  const at::Tensor same = a;
  EXPECT_TRUE(names.has(same));
}

TEST(WeakTensorMap, DoesNotKeepTensorsAliveOrReuseTheirAddresses) {
  Names names;
  at::Tensor gone = torch::zeros(2);
  const at::Tensor there = torch::zeros(2);
  const c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> watched(gone.getIntrusivePtr());
  names.set(gone, "gone");
  names.set(there, "there");
  gone.reset();
  EXPECT_TRUE(watched.expired());
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(names.has(torch::zeros(2))) << "its address was given to another";
  std::string visited;
  names.for_each([&](const at::Tensor& tensor, const std::string& name) {
    EXPECT_TRUE(tensor.is_same(there));
    visited += name;
  });
  EXPECT_EQ(visited, "there");
  EXPECT_EQ(names.size(), 2u);
  names.drop_expired();
  EXPECT_EQ(names.size(), 1u);
}

TEST(WeakTensorMap, DropsExpiredEntriesAsItGrows) {
  Names names;
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 5000; ++i) {
    const at::Tensor tensor = torch::zeros(1);
    if (i % 100 == 0) kept.push_back(tensor);
    names.set(tensor, std::to_string(i));
    EXPECT_LE(names.size(), 256u + 1);
  }
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(*names.find(kept[i]), std::to_string(100 * i));
}

}  // namespace
}  // namespace apex::test
