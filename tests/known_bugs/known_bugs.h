#pragma once

#include "tests/amp/optimizers.h"

namespace apex::test {

/// Tests are named after the id of the defect. Comments say what Apex does.
class KnownBugs : public AmpTest {};

}  // namespace apex::test
