#include <apex_cpp/amp/session/printing.h>

#include <atomic>
#include <iomanip>
#include <iostream>

namespace apex::amp::detail {
namespace {

constexpr int kColumn = 22;

std::atomic<bool> prints_properties{true};

void print_row(const std::string& name, const std::string& value) {
  std::cout << "  " << std::left << std::setw(kColumn) << name << " : " << value << "\n";
}

void print_table(const opt_levels::Properties& properties) {
  for (const auto& [name, value] : opt_levels::describe(properties)) print_row(name, value);
}

}  // namespace

void let_print_properties(bool on) { prints_properties = on; }

void print_properties(const opt_levels::OptLevel& level, const opt_levels::Settings& settings) {
  if (settings.verbosity <= 0 || !prints_properties) return;
  std::cout << "amp: opt level " << level.name() << ": " << level.description() << "\n"
            << "Properties that the level sets:\n";
  print_table(level.preset());
  std::cout << "Properties in force, with overrides:\n";
  print_table(settings.properties);
  if (settings.skip_nonfinite) print_row("skip_nonfinite", "true");  // Apex's block ends before
  std::cout << std::flush;
}

void print_cpu_compute(const opt_levels::Settings& settings, c10::ScalarType type, bool in_float32, const std::string& reason) {
  if (settings.verbosity <= 0 || !prints_properties) return;
  std::cout << "amp: " << type << " operators on the CPU " << (in_float32 ? "compute in FP32" : "are native") << ": " << reason
            << std::endl;
}

void print_skipped_step(const Session& session, const Overflow& overflow, double scale_now) {
  if (session.settings.verbosity <= 0) return;
  std::cout << "amp: gradient overflow: " << describe(overflow.grad)
            << (overflow.nonfinite_loss ? ", of a loss that is not finite" : "") << ". Skipping step, loss scaler "
            << overflow.loss_id << " was at loss scale " << overflow.scale_before << " and is at " << scale_now << std::endl;
}

void print_line(const std::string& text) {
  const auto session = current_session();
  if (prints_properties && session && session->settings.verbosity > 0) std::cout << "amp: " << text << std::endl;
}

}  // namespace apex::amp::detail
