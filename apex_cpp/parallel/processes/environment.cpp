#include <apex_cpp/parallel/processes/environment.h>

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

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

}  // namespace apex::parallel::detail
