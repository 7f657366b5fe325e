#include "tests/oracle/events/events.h"

#include <c10/util/Exception.h>

#include "tests/oracle/session/session.h"
#include "tests/oracle/verdict/exceptions.h"

namespace oracle {

const EventRegistry& event_registry() {
  static const EventRegistry kRegistry = [] {
    EventRegistry registry;
    add_model_events(registry);
    add_backward_events(registry);
    add_optimizer_events(registry);
    add_checkpoint_events(registry);
    add_record_event(registry);
    add_fp16_events(registry);
    for (auto& [op, handler] : registry) handler.fields.insert({"op", "expect"});
    return registry;
  }();
  return kRegistry;
}

void play_event(Session& session, const Json& event) {
  session.apply_repairs(event);
  event_registry().at(event.at("op").as_string()).play(session, event);
  session.history().add(event);
  session.resume_check().add(session, event);
}

}  // namespace oracle
