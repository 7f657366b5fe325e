#pragma once

#include "tests/amp/optimizers.h"

namespace apex::test {

/// Tests are named by the id of the defect: what Apex does is said above each, what happens here is the test.
class KnownBugs : public AmpTest {};

}  // namespace apex::test
