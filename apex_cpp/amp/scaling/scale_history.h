#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iosfwd>

namespace apex::amp {

/// Why a loss scale was moved.
enum class ScaleChange {
  overflow,  ///< a gradient was Inf or NaN: the step is skipped, a dynamic scale halved, down to min_loss_scale
  growth,    ///< scale_window clean updates: doubled, up to max_loss_scale
  restored,  ///< a saved scale was put in force
};

/// "overflow", "growth" or "restored".
const char* name_of(ScaleChange change);

/// One event in the life of a loss scale. Clean updates between events are not recorded.
struct ScaleEvent {
  int64_t update = 0;  // of this scaler since it was made, from 1; a restored scale has the number of the update before it
  double before = 1;
  double after = 1;  // equal to `before` at a floor or a ceiling
  ScaleChange change = ScaleChange::overflow;

  bool skipped() const { return change == ScaleChange::overflow; }
};

/// The newest events of one loss scaler, oldest first. Host data: writing it costs next to nothing and never synchronises.
class ScaleHistory {
 public:
  static constexpr size_t kCapacity = 1000;

  const std::deque<ScaleEvent>& events() const { return events_; }
  /// How many events are kept; the oldest ones make room. 0: none.
  size_t capacity() const { return capacity_; }
  void set_capacity(size_t events);
  void clear() { events_.clear(); }

  /// Comma-separated values under the header update,scale_before,scale_after,skipped,reason. Scales are exact.
  void write_csv(std::ostream& out) const;

  void add(const ScaleEvent& event);

 private:
  size_t capacity_ = kCapacity;
  std::deque<ScaleEvent> events_;
};

}  // namespace apex::amp
