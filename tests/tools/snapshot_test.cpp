#include "snapshot.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

namespace {

TEST(Snapshot, IsUnaffectedByLaterChanges) {
  int state = 1;
  const bench::Snapshot snapshot([&](int number) { return 100.0 * state + number; });
  state = 2;
  EXPECT_EQ(snapshot.measure(7), 107);
  EXPECT_EQ(snapshot.measure(8), 108);
}

TEST(Snapshot, SeveralEndInAnyOrder) {
  const auto measure = [](int number) { return 2.0 * number; };
  auto first = std::make_unique<bench::Snapshot>(measure), second = std::make_unique<bench::Snapshot>(measure);
  first.reset();
  EXPECT_EQ(second->measure(4), 8);
}

TEST(Snapshot, ReportsAFailureOfItsProcess) {
  const bench::Snapshot snapshot([](int) -> double { throw std::runtime_error("no"); });
  EXPECT_THROW(snapshot.measure(1), std::runtime_error);
}

}  // namespace
