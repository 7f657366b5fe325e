#include <apex_cpp/parallel/processes/rendezvous.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

namespace apex::parallel::detail {
namespace {

constexpr const char* kRemedy =
    "start the program by `torchrun --no-python --nproc_per_node=N program`, set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE "
    "yourself, or give ProcessGroupOptions an init_method, a rank and a world_size";

bool parse(const std::string& text, int& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

}  // namespace

std::string environment_text(const char* name, const std::string& rank) {
  const char* text = std::getenv(name);
  TORCH_CHECK(text && *text, "init_process_group (rank ", rank, "): the environment variable ", name, " is not set: ", kRemedy);
  return text;
}

int environment_number(const char* name, const std::string& rank, int low, int high) {
  const auto text = environment_text(name, rank);
  int number = 0;
  TORCH_CHECK(parse(text, number) && low <= number && number <= high, "init_process_group (rank ", rank,
              "): the environment variable ", name, " is '", text, "', not a number from ", low, " to ", high, ": ", kRemedy);
  return number;
}

bool agent_serves_the_store() {
  const char* text = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return text && std::strcmp(text, "True") == 0;
}

int local_rank(int otherwise) {
  if (!std::getenv("LOCAL_RANK")) return otherwise;
  return environment_number("LOCAL_RANK", "?", 0, std::numeric_limits<int>::max());
}

namespace {

// Excludes other processes from lock() on. Has no effect if the file system cannot lock folders.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (folder_ >= 0) ::close(folder_);
  }

  void lock(const std::filesystem::path& folder) {
    folder_ = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_ >= 0) ::flock(folder_, LOCK_EX);
  }

 private:
  int folder_ = -1;
};

// c10d's FileStore counts first that a rank leaves and then that it no longer uses the file. Two ranks that leave at once would
// each take the other for the last, and the file would stay. The lock is released after c10d's destructor.
class FileStore final : private FolderLock, public c10d::FileStore {
 public:
  using c10d::FileStore::FileStore;
  ~FileStore() override { lock(std::filesystem::path(path_).parent_path()); }

  c10::intrusive_ptr<c10d::Store> clone() override { return make_file_store(path_, numWorkers_); }
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_file_store(const std::string& path, int world_size) {
  return c10::make_intrusive<FileStore>(path, world_size);
}

namespace {

constexpr const char* kGaveUp = "gave_up";
constexpr int kLargestPort = 65535;
constexpr int kMostRanks = std::numeric_limits<int>::max();

std::string rank_text(const ProcessGroupOptions& options) { return options.rank() < 0 ? "?" : std::to_string(options.rank()); }

Rendezvous who_we_are(const ProcessGroupOptions& options) {
  Rendezvous place;
  place.rank = options.rank() < 0 ? environment_number("RANK", "?", 0, kMostRanks) : options.rank();
  const auto rank = std::to_string(place.rank);
  place.world_size = options.world_size() < 0 ? environment_number("WORLD_SIZE", rank, 1, kMostRanks) : options.world_size();
  TORCH_CHECK(place.rank < place.world_size, "init_process_group: rank ", place.rank, " is outside a world of ",
              place.world_size, ": ranks count from 0");
  return place;
}

[[noreturn]] void cannot_use(const Rendezvous& place, const std::string& what, const std::string& cause) {
  const bool serves = place.rank == 0 && !agent_serves_the_store();
  TORCH_CHECK(false, "init_process_group (rank ", place.rank, " of ", place.world_size, "): ", what, " cannot be used: ", cause,
              serves ? "\nThis rank serves the store there: choose another port (MASTER_PORT) if another program has it."
                     : "\nIs rank 0 running (it ends if another rank does not start in time), and can this machine reach its "
                       "address (MASTER_ADDR)?");
}

c10::intrusive_ptr<c10d::Store> open_tcp_store(const Rendezvous& place, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.isServer = place.rank == 0 && !agent_serves_the_store();
  options.waitWorkers = false;  // meet() reports the missing ranks
  options.multiTenant = true;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(place.host, options);
  } catch (const std::exception& error) {
    cannot_use(place, "the store at " + place.host + ":" + std::to_string(place.port), error.what());
  }
}

// One store per address for the life of the process: a restart would otherwise meet the old server while it shuts down.
c10::intrusive_ptr<c10d::Store> tcp_store(const Rendezvous& place, std::chrono::milliseconds timeout) {
  static auto* stores = new std::map<std::string, c10::intrusive_ptr<c10d::Store>>;
  auto& store = (*stores)[place.host + ":" + std::to_string(place.port)];
  if (!store) store = open_tcp_store(place, timeout);
  store->setTimeout(timeout);
  return store;
}

c10::intrusive_ptr<c10d::Store> file_store(const Rendezvous& place, const std::string& path,
                                           std::chrono::milliseconds timeout) {
  try {
    auto store = make_file_store(path, place.world_size);
    store->setTimeout(timeout);
    return store;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "init_process_group (rank ", place.rank, "): the store's file ", path,
                " cannot be used: ", error.what());
  }
}

bool starts_with(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

void read_address(Rendezvous& place, const std::string& address) {
  const auto colon = address.rfind(':');
  int port = -1;
  if (colon != std::string::npos && colon + 1 < address.size() &&
      address.find_first_not_of("0123456789", colon + 1) == std::string::npos && address.size() - colon <= 6)
    port = std::stoi(address.substr(colon + 1));
  TORCH_CHECK(colon != 0 && port >= 0 && port <= kLargestPort, "init_process_group (rank ", place.rank,
              "): the init_method 'tcp://", address, "' does not have the form tcp://HOST:PORT");
  place.host = address.substr(0, colon);
  place.port = port;
}

void read_environment(Rendezvous& place) {
  const auto rank = std::to_string(place.rank);
  place.host = environment_text("MASTER_ADDR", rank);
  place.port = environment_number("MASTER_PORT", rank, 0, kLargestPort);
}

// A prefix for each start: torchrun's store serves all of its restarts, and a process may start again with other groups.
c10::intrusive_ptr<c10d::Store> of_this_start(c10::intrusive_ptr<c10d::Store> store) {
  static std::atomic<int> starts{0};
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const auto prefix = "apex_cpp/" + std::string(restarts ? restarts : "0") + "/" + std::to_string(starts++);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::string arrival(int rank) { return "here/" + std::to_string(rank); }

std::string missing_ranks(const Rendezvous& place) {
  std::string list;
  for (int rank = 0; rank < place.world_size; ++rank)
    if (!place.store->check({arrival(rank)})) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return list;
}

// What a rank leaves in the store for the others: its world size and its text.
std::string arrival_text(const Rendezvous& place, const std::string& brought) {
  return std::to_string(place.world_size) + ' ' + brought;
}

std::string read_arrival(const Rendezvous& place, int rank) {
  const auto arrived = text(place.store->get(arrival(rank)));
  const auto space = arrived.find(' ');
  const auto world_size = arrived.substr(0, space);
  TORCH_CHECK(world_size == std::to_string(place.world_size), "init_process_group: rank ", place.rank, " has a WORLD_SIZE of ",
              place.world_size, ", but rank ", rank, " has a WORLD_SIZE of ", world_size);
  return arrived.substr(space + 1);
}

void arrive(const Rendezvous& place, const std::string& brought) {
  TORCH_CHECK(place.store->add("count/" + std::to_string(place.rank), 1) == 1, "init_process_group: rank ", place.rank,
              " has already joined: give each process a different RANK, and remove a store's file that an earlier run left");
  place.store->set(arrival(place.rank), arrival_text(place, brought));
}

// Reports to ranks that arrive later, if the store still serves.
[[noreturn]] void give_up(const Rendezvous& place, std::chrono::milliseconds waited, const std::string& cause) {
  std::string report;
  try {
    report = "waited " + std::to_string(waited.count()) + " ms without success for rank " + missing_ranks(place);
    place.store->set(kGaveUp, "rank " + std::to_string(place.rank) + " " + report);
  } catch (const std::exception&) {
    report = "the process that serves the store ended while this one waited for others; it may have given up";
  }
  TORCH_CHECK(false, "init_process_group (rank ", place.rank, " of ", place.world_size, "): ", report,
              ": did every process start, with the same address and WORLD_SIZE? (", cause, ")");
}

void expect_that_nobody_gave_up(const Rendezvous& place) {
  if (!place.store->check({kGaveUp})) return;
  TORCH_CHECK(false, "init_process_group: rank ", place.rank, " of ", place.world_size,
              " started too late: ", text(place.store->get(kGaveUp)),
              ". Start all processes again, with a longer ProcessGroupOptions().timeout if they need longer to start, and "
              "remove a store's file that an earlier run left");
}

void wait_for(const Rendezvous& place, int rank, std::chrono::milliseconds timeout) {
  try {
    place.store->wait({arrival(rank)}, timeout);
  } catch (const std::exception& error) {
    give_up(place, timeout, error.what());
  }
}

}  // namespace

Rendezvous open_store(const ProcessGroupOptions& options) {
  auto place = who_we_are(options);
  const auto& method = options.init_method();
  if (starts_with(method, "file://")) {
    place.store = file_store(place, method.substr(7), options.timeout());
  } else {
    TORCH_CHECK(method == "env://" || starts_with(method, "tcp://"), "init_process_group (rank ", rank_text(options),
                "): the init_method is '", method, "': use env://, tcp://HOST:PORT or file://PATH");
    method == "env://" ? read_environment(place) : read_address(place, method.substr(6));
    place.store = tcp_store(place, options.timeout());
  }
  place.store = of_this_start(std::move(place.store));
  return place;
}

std::vector<std::string> meet(const Rendezvous& place, const std::string& brought, std::chrono::milliseconds timeout) {
  expect_that_nobody_gave_up(place);
  arrive(place, brought);
  std::vector<std::string> of_all;
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (int rank = 0; rank < place.world_size; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    wait_for(place, rank, std::max(left, std::chrono::milliseconds(1)));
    of_all.push_back(read_arrival(place, rank));
  }
  expect_that_nobody_gave_up(place);
  return of_all;
}

}  // namespace apex::parallel::detail
