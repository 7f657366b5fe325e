#include <apex_cpp/parallel/processes/backends.h>

#include <c10/util/Exception.h>

#include <map>

namespace apex::parallel::detail {

std::string text_of(const BackendWish& wish) { return wish.backend + ' ' + wish.gpu; }

BackendWish wish_of(const std::string& text) {
  const auto space = text.find(' ');
  return {text.substr(0, space), text.substr(space + 1)};
}

std::string why_without_nccl(const std::vector<BackendWish>& wishes) {
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    const auto& gpu = wishes[rank].gpu;
    if (gpu.empty()) return "rank " + std::to_string(rank) + " has no GPU";
    const auto [owner, is_first] = owners.emplace(gpu, rank);
    if (!is_first) return "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) + " have the same GPU";
  }
  return "";
}

std::string choose_backend(const std::vector<BackendWish>& wishes) {
  size_t told = wishes.size();  // the first rank that was told
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    const auto& backend = wishes[rank].backend;
    if (backend.empty()) continue;
    if (told == wishes.size()) told = rank;
    TORCH_CHECK(backend == wishes[told].backend, "init_process_group: rank ", rank, " was given the backend '", backend,
                "', but rank ", told, " '", wishes[told].backend, "': give all the same one");
  }
  if (told < wishes.size()) return wishes[told].backend;
  return why_without_nccl(wishes).empty() ? "cpu:gloo,cuda:nccl" : "gloo";
}

}  // namespace apex::parallel::detail
