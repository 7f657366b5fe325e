#pragma once

#include "data/dataset.h"

namespace train {

/// Splits a data set that comes in one piece: of every class, the same share (rounded) goes to the test set. The choice depends
/// on the data alone, never on a run's seed, so test accuracies of different runs compare.
void stratified_split(const Dataset& all, int64_t classes, double test_share, Dataset& train, Dataset& test);

}  // namespace train
