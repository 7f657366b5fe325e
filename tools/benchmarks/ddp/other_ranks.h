#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace bench::ddp {

/// The rank and the settings that a further rank reads from its environment.
struct FurtherRank {
  int rank = 0, ranks = 1, rounds = 0;
  std::string store;
};
/// True if this process was started as a further rank.
bool is_further_rank();
FurtherRank further_rank();

/// Starts copies of this program as ranks 1, 2, ...; this process is rank 0. They end with this process, and their output is
/// discarded.
class OtherRanks {
 public:
  OtherRanks(int ranks, int rounds);
  ~OtherRanks();
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

  /// The file through which the ranks meet.
  const std::string& store() const { return store_; }

 private:
  std::string store_;
  std::vector<pid_t> children_;
};

}  // namespace bench::ddp
