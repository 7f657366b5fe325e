#include "way.h"

namespace bench::train {
namespace {

constexpr const char* kAutocastBf16 = "autocast BF16";
constexpr const char* kAutocastFp16 = "autocast FP16";

}  // namespace

std::string Way::rival() const {
  if (level == "O4" || level == "O5" || level == "O6") return name_of(kAutocastBf16);
  if (level == "O1" || level == "O2" || level == "O3") return name_of(kAutocastFp16);
  return "";
}

std::vector<Way> ways() {
  std::vector<Way> kinds{{"plain"},    {kAutocastBf16, "", at::kBFloat16},   {kAutocastFp16, "", at::kHalf},
                         {"O0", "O0"}, {"O0 static scale", "O0", {}, "128"}, {"O0 dynamic scale", "O0", {}, "dynamic"}};
  for (const char* level : {"O1", "O2", "O3", "O4", "O5", "O6"}) kinds.push_back({level, level});
  std::vector<Way> all;
  for (Way& way : kinds) {
    for (const bool fused : {false, true}) {
      way.fused = fused;
      all.push_back(way);
    }
  }
  return all;
}

}  // namespace bench::train
