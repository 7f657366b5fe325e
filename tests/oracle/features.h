#pragma once

#include <set>
#include <string>

#include "tests/oracle/reading/json.h"

namespace oracle {

// Throws NeedsFeature, naming all of it, if a case holds something that the replayer does not know: an optimizer, layer, event,
// or a field of any object, since what is passed over might change what the case means.
void require_features(const Json& json);

// Throws NeedsFeature for a member that is not among `known`. Null members count as absent. `what` names the object.
void require_known(const Json& object, const std::set<std::string>& known, const std::string& what);

}  // namespace oracle
