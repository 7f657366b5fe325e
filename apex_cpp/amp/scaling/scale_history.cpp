#include <apex_cpp/amp/scaling/scale_history.h>
#include <apex_cpp/tables/csv.h>

#include <ostream>
#include <string>

namespace apex::amp {

const char* name_of(ScaleChange change) {
  switch (change) {
    case ScaleChange::overflow:
      return "overflow";
    case ScaleChange::growth:
      return "growth";
    case ScaleChange::restored:
      return "restored";
  }
  return "";
}

void ScaleHistory::set_capacity(size_t events) {
  capacity_ = events;
  while (events_.size() > capacity_) events_.pop_front();
}

void ScaleHistory::add(const ScaleEvent& event) {
  if (capacity_ == 0) return;
  if (events_.size() == capacity_) events_.pop_front();
  events_.push_back(event);
}

void ScaleHistory::write_csv(std::ostream& out) const {
  std::string text = "update,scale_before,scale_after,skipped,reason\n";
  for (const auto& event : events_) {
    text += csv_row(event.update, event.before, event.after, event.skipped(), name_of(event.change));
  }
  out << text;
}

}  // namespace apex::amp
