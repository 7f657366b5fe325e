#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tests/oracle/reading/json.h"

namespace oracle {

class Report;
class Session;

// Resuming must change nothing: if the events after `load` are those after the `save`, each gives the same bits. This does not
// depend on the recording, so resumed cases are checked by it where the recording has a defect (BUG-10). If the runs cannot be
// compared, the report says so and why.
class ResumeCheck {
 public:
  // After each event was played.
  void add(Session& session, const Json& event);
  // After the last one.
  void finish(Report& report);

 private:
  struct Entry {
    std::string key;  // what is done, without the names of results
    std::vector<at::Tensor> values;
  };
  using Log = std::vector<Entry>;

  void begin(Session& session, const Json& load);
  // Empty if the run after this load can be compared.
  std::string obstacle(Session& session, const Json& load) const;
  // From here on nothing is compared.
  void end(Report& report, const std::string& reason);
  void compare(Session& session, const Entry& entry);

  std::map<std::string, Log> logs_;  // the results after each save, by its name
  bool sets_what_is_not_saved_ = false;
  bool loaded_ = false;
  const Log* expected_ = nullptr;  // of the run that was saved
  size_t next_ = 0;
};

}  // namespace oracle
