#include "suites.h"

namespace bench {

const std::vector<Suite>& suites() {
  static const std::vector<Suite> all{
      {"casts", "what amp's cast engine (O1, O4) costs: off, per operator, and per training step, beside torch's autocast",
       run_casts},
  };
  return all;
}

}  // namespace bench
