#include <arpa/inet.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/distributed/launcher.h"

extern char** environ;

namespace apex::testing {
namespace {

std::string new_folder() {
  const char* around = std::getenv("TMPDIR");
  std::string path = std::string(around ? around : "/tmp") + "/apex_cpp_ranks_XXXXXX";
  if (!mkdtemp(path.data())) throw std::runtime_error("cannot make a folder like " + path);
  return path;
}

bool names_one_of(const std::string& variable, const std::vector<std::string>& others) {
  const auto name = variable.substr(0, variable.find('=') + 1);
  for (const auto& other : others)
    if (other.compare(0, name.size(), name) == 0) return true;
  return false;
}

std::vector<std::string> environment_with(std::vector<std::string> variables) {
  for (char** variable = environ; *variable; ++variable)
    if (!names_one_of(*variable, variables)) variables.emplace_back(*variable);
  return variables;
}

std::vector<std::string> variables_of(int rank, int count, int port) {
  return {"RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank),  "WORLD_SIZE=" + std::to_string(count),
          "MASTER_ADDR=127.0.0.1",        "MASTER_PORT=" + std::to_string(port), "OMP_NUM_THREADS=1"};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (auto& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

pid_t spawn(std::vector<std::string> command, std::vector<std::string> environment, const std::string& output_path) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, command[0].c_str(), &actions, nullptr, pointers(command).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error) throw std::runtime_error("cannot start " + command[0]);
  return pid;
}

}  // namespace

bool RankProcess::succeeded() const { return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0; }

std::string RankProcess::output() const {
  std::ifstream file(output_path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Ranks::Ranks(int count, const std::vector<std::string>& command, const std::vector<std::string>& extra)
    : folder_(new_folder()), port_(Port().number()), processes_(static_cast<size_t>(count)) {
  for (int rank = 0; rank < count; ++rank) start(rank, count, command, extra);
}

Ranks::~Ranks() {
  end();
  for (const auto& process : processes_) ::unlink(process.output_path.c_str());
  ::rmdir(folder_.c_str());
}

void Ranks::start(int rank, int count, const std::vector<std::string>& command, const std::vector<std::string>& extra) {
  std::vector<std::string> variables = extra;
  for (auto& variable : variables_of(rank, count, port_))
    if (!names_one_of(variable, extra)) variables.push_back(std::move(variable));
  auto& process = (*this)[rank];
  process.output_path = folder_ + "/" + std::to_string(rank);
  process.pid = spawn(command, environment_with(std::move(variables)), process.output_path);
}

bool Ranks::look() {
  bool all = true;
  for (auto& process : processes_) {
    if (!process.ended) process.ended = ::waitpid(process.pid, &process.status, WNOHANG) == process.pid;
    all = all && process.ended;
  }
  return all;
}

void Ranks::wait(int grace_seconds) {
  using Clock = std::chrono::steady_clock;
  auto until = Clock::time_point::max();
  while (!look() && Clock::now() < until) {
    for (auto& process : processes_)
      if (process.ended && !process.succeeded() && until == Clock::time_point::max())
        until = Clock::now() + std::chrono::seconds(grace_seconds);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  end();
}

void Ranks::end() {
  for (const auto& process : processes_)
    if (!process.ended) ::kill(process.pid, SIGKILL);
  for (auto& process : processes_)
    if (!process.ended) process.ended = ::waitpid(process.pid, &process.status, 0) == process.pid;
}

bool Ranks::ends_within(int rank, int seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!(*this)[rank].ended && std::chrono::steady_clock::now() < until) {
    look();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return (*this)[rank].ended;
}

bool Ranks::all_succeeded() const {
  for (const auto& process : processes_)
    if (!process.succeeded()) return false;
  return true;
}

std::string Ranks::outputs() const {
  std::ostringstream text;
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    std::istringstream lines(processes_[rank].output());
    for (std::string line; std::getline(lines, line);) text << "[rank " << rank << "] " << line << "\n";
  }
  return text.str();
}

Port::Port() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool found = ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(socket_, 1) == 0 &&
                     ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (!found) throw std::runtime_error("no port of 127.0.0.1 is free");
  number_ = ntohs(address.sin_port);
}

Port::~Port() { ::close(socket_); }

std::string this_program() {
  char path[PATH_MAX];
  const auto size = ::readlink("/proc/self/exe", path, sizeof path);
  return {path, static_cast<size_t>(size)};
}

}  // namespace apex::testing
