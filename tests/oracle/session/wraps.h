#pragma once

#include <functional>
#include <map>
#include <string>

#include "tests/oracle/reading/json.h"

namespace oracle {

struct OptimizerSlot;

// What a case's `wrap` puts around an optimizer that was just made, by Apex's names. A new class is one more entry.
const std::map<std::string, std::function<void(OptimizerSlot&, const Json& args)>>& wrap_registry();

// Wraps the slot's optimizer as `wrap` ({type, args}) says. Throws NeedsFeature for a class or an argument that is not known.
void wrap_optimizer(OptimizerSlot& slot, const Json& wrap);

}  // namespace oracle
