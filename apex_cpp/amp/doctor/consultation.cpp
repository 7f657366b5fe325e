#include <apex_cpp/amp/doctor/consultation.h>

#include <c10/util/Exception.h>

#include <apex_cpp/amp/doctor/delta_debugging.h>

namespace apex::amp::detail {
namespace {

// Divergences that are followed before everything is tried.
constexpr size_t kMostGuesses = 8;

// What is blamed; or, where that is kept already, what comes before it: gradients have the types that the forward pass gave to
// what it handed on.
bool add_blamed(const Finding& finding, KeptList& list) {
  for (size_t call = finding.verdict.call + 1; call-- > 0;) {
    if (add_new(kept_for(finding.step.calls[call]), list)) return true;
  }
  return false;
}

}  // namespace

const Finding& Consultation::finding() {
  if (!finding_) finding_ = examination_.find(level_);
  return *finding_;
}

KeptList Consultation::guess() {
  KeptList list;
  Finding now = finding();
  for (size_t i = 0; i < kMostGuesses && now.verdict.divergence && add_blamed(now, list); ++i) {
    now = examination_.find_in_step(keeping(level_, list), now.verdict.divergence.step);
  }
  return list;
}

KeptList Consultation::all() {
  auto list = all_kept_for(finding().step);
  TORCH_CHECK(examination_.trains(keeping(level_, list)), "Doctor: with everything in FP32 that ", level_.name(),
              " can keep there the program does not train either (first divergence: ", finding().verdict.divergence.place(),
              "). Look for a tensor that the program itself makes or converts in 16 bits, or in code that amp does not see.");
  return list;
}

OptLevel Consultation::minimal_float32() {
  const auto works = [&](const KeptList& kept) { return examination_.trains(keeping(level_, kept)); };
  if (!finding().verdict.divergence && works({})) return level_;
  auto list = guess();
  if (list.empty() || !works(list)) list = all();
  return keeping(level_, minimal(std::move(list), works));
}

}  // namespace apex::amp::detail
