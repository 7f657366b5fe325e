#include <apex_cpp/amp/doctor.h>

#include <apex_cpp/amp/doctor/diagnosis.h>
#include <apex_cpp/amp/session.h>

#include <utility>

namespace apex::amp {
namespace {

// Ends the session after each run, so that amp does not cast what the next run does before `initialize`.
struct ResetAtEnd {
  ~ResetAtEnd() { reset(); }
};

Doctor::Program with_reset(Doctor::Program program) {
  return [program = std::move(program)](const OptLevel& level, DoctorRun& run) {
    const ResetAtEnd at_end;
    program(level, run);
  };
}

}  // namespace

Doctor::Doctor(const OptLevel& level, Program program, const DoctorOptions& options)
    : diagnosis_(std::make_unique<detail::Diagnosis>(level, with_reset(std::move(program)), options)) {
  level.preset();  // throws for an unknown level
}

Doctor::~Doctor() = default;

Divergence Doctor::first_divergence() { return diagnosis_->finding().located.divergence; }

OptLevel Doctor::minimal_float32() { return diagnosis_->minimal_float32(); }

}  // namespace apex::amp
