#pragma once

#include "tests/oracle/json.h"

namespace oracle {

// Throws NeedsFeature, naming all that is missing, when a train, optimizer or fp16_optimizer case asks for something that the
// library does not have yet. It goes by what the case contains, never by its name.
void require_features(const Json& json);

}  // namespace oracle
