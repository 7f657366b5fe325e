#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace apex::testing {

/// One of several processes: its output, and its exit status (as waitpid returns it).
struct RankProcess {
  pid_t pid = -1;
  std::string output_path;
  int status = -1;
  bool ended = false;

  bool succeeded() const;
  std::string output() const;
};

/// Copies of a program as the ranks of one world on this machine. Each has RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
/// LOCAL_RANK set, one thread, and its output in a file. The destructor kills all of them.
class Ranks {
 public:
  /// Starts `command` `count` times. `extra`: further environment variables, NAME=value.
  Ranks(int count, const std::vector<std::string>& command, const std::vector<std::string>& extra = {});
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  RankProcess& operator[](int rank) { return processes_[static_cast<size_t>(rank)]; }
  /// Waits for all ranks. After the first failure the others get `grace_seconds` before they are killed.
  void wait(int grace_seconds);
  bool ends_within(int rank, int seconds);
  bool all_succeeded() const;
  /// The output of all ranks, each line prefixed by its rank.
  std::string outputs() const;

 private:
  void start(int rank, int count, const std::vector<std::string>& command, const std::vector<std::string>& extra);
  /// Polls the processes; true if all have ended.
  bool look();
  /// Kills all running processes before it waits for one, so that none sees another end.
  void end();

  std::string folder_;
  int port_;
  std::vector<RankProcess> processes_;
};

/// A port of 127.0.0.1 that stays reserved while the object lives.
class Port {
 public:
  Port();
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

/// The path of the running program.
std::string this_program();

}  // namespace apex::testing
