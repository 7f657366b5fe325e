#pragma once

#include <apex_cpp/amp.h>

#include "models/models.h"

namespace train {

/// What is trained: the classifier, as `amp::initialize` returned it.
using Network = apex::amp::Model<Classifier>;

}  // namespace train
