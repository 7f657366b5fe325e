#include "data/split.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "data/shuffle.h"

namespace train {
namespace {

constexpr uint64_t kSplitSeed = 1797;

Dataset chosen(const Dataset& all, std::vector<int64_t> rows) {
  std::sort(rows.begin(), rows.end());
  const auto index = at::tensor(rows, at::kLong);
  return {all.images.index_select(0, index), all.labels.index_select(0, index)};
}

}  // namespace

void stratified_split(const Dataset& all, int64_t classes, double test_share, Dataset& train, Dataset& test) {
  std::vector<std::vector<int64_t>> rows_of(static_cast<size_t>(classes));
  const auto* labels = all.labels.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < all.size(); ++row) {
    rows_of[static_cast<size_t>(labels[row])].push_back(row);
  }
  std::vector<int64_t> train_rows, test_rows;
  for (size_t label = 0; label < rows_of.size(); ++label) {
    const auto& rows = rows_of[label];
    const auto count = static_cast<int64_t>(rows.size());
    const auto in_test = std::lround(test_share * static_cast<double>(count));
    const auto order = shuffled_indices(count, kSplitSeed, label);
    for (int64_t place = 0; place < count; ++place) {
      auto& part = place < in_test ? test_rows : train_rows;
      part.push_back(rows[static_cast<size_t>(order[static_cast<size_t>(place)])]);
    }
  }
  train = chosen(all, std::move(train_rows));
  test = chosen(all, std::move(test_rows));
}

}  // namespace train
