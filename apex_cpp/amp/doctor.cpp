#include <apex_cpp/amp/doctor.h>

#include <apex_cpp/amp/doctor/consultation.h>
#include <apex_cpp/amp/session.h>

namespace apex::amp {
namespace {

struct ResetAtEnd {
  ~ResetAtEnd() { reset(); }
};

}  // namespace

Doctor::Doctor(const OptLevel& level, Program program, const DoctorOptions& options)
    : consultation_(std::make_unique<detail::Consultation>(level, std::move(program), options)) {
  level.preset();  // an unknown level is refused here
}

Doctor::~Doctor() = default;

Divergence Doctor::first_divergence() {
  const ResetAtEnd at_end;
  return consultation_->finding().verdict.divergence;
}

OptLevel Doctor::minimal_float32() {
  const ResetAtEnd at_end;
  return consultation_->minimal_float32();
}

}  // namespace apex::amp
