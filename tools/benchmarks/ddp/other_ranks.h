#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace bench::ddp {

/// What a process that was started as a further rank finds in its environment.
struct FurtherRank {
  int rank = 0, ranks = 1, rounds = 0;
  std::string store;
};
/// Whether this process is one.
bool is_further_rank();
FurtherRank further_rank();

/// Copies of this program as ranks 1, 2, … of a world in which this process is rank 0. They end with this process, and their
/// output goes nowhere.
class OtherRanks {
 public:
  OtherRanks(int ranks, int rounds);
  ~OtherRanks();
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

  /// The file in which the ranks meet.
  const std::string& store() const { return store_; }

 private:
  std::string store_;
  std::vector<pid_t> children_;
};

}  // namespace bench::ddp
