#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "tests/oracle/reading/json.h"

namespace oracle {

class Session;
struct OptimizerSlot;

struct EventHandler {
  std::set<std::string> fields;   // what an event of this op may hold
  std::set<std::string> expects;  // the expectations that it may have; others are unknown features
  std::function<void(Session&, const Json& event)> play;
};
using EventRegistry = std::map<std::string, EventHandler>;

// Event handlers by op. A new op is one more entry.
const EventRegistry& event_registry();

void add_model_events(EventRegistry& registry);
void add_backward_events(EventRegistry& registry);
void add_optimizer_events(EventRegistry& registry);
void add_checkpoint_events(EventRegistry& registry);
void add_record_event(EventRegistry& registry);
void add_fp16_events(EventRegistry& registry);

// Writes the values of the event's `inject` into gradients of model parameters.
void inject(Session& session, const Json& event);
// Steps the event's optimizer, as it is or wrapped.
void play_step(Session& session, const Json& event);

// Checks what the last backward event said of an optimizer's next step, by stepping it, if no step has shown it yet.
void check_will_skip(Session& session, OptimizerSlot& slot);

// Plays one event and checks the exception that it expects, or expects none.
void play_event(Session& session, const Json& event);

}  // namespace oracle
