#include "tests/state_machine/comparison.h"

#include <c10/util/Exception.h>

#include <sstream>

#include "tests/state_machine/literal_amp.h"
#include "tests/state_machine/product.h"

namespace apex::test {

std::string run(const Config& config, const std::vector<Event>& events) {
  LiteralAmp model(config);
  Product product(config);
  std::string where = difference(model.state(), product.state());
  for (size_t i = 0; i < events.size() && where.empty(); ++i) {
    model.apply(events[i]);
    try {
      product.apply(events[i]);
      where = difference(model.state(), product.state());
    } catch (const c10::Error& error) {
      where = error.what_without_backtrace();
    }
    if (!where.empty()) where += " (after event " + std::to_string(i + 1) + ")";
  }
  return where;
}

std::string listing(const Config& config, const std::vector<Event>& events) {
  std::ostringstream text;
  text << describe(config) << "\n";
  for (size_t i = 0; i < events.size(); ++i) text << "  " << i + 1 << ". " << describe(events[i]) << "\n";
  return text.str();
}

}  // namespace apex::test
