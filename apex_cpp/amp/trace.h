#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace apex::amp {

/// One operator call, as the program made it: operators inside of it are not listed.
struct TracedOp {
  struct Cast {
    c10::ScalarType from;
    c10::ScalarType to;
    bool cached;  ///< the cast was found in the weight cache: nothing was computed
  };

  std::string name;       ///< "aten::conv2d"; an overload follows a dot
  std::string module;     ///< path of the module whose parameter it used, such as "layer1.0.conv1"; empty if none is known
  bool backward = false;  ///< called in a backward pass
  std::vector<c10::ScalarType> inputs;   ///< of the tensors among the arguments, in order, before any cast
  std::vector<c10::ScalarType> outputs;  ///< of the tensors in the result
  bool in_float32 = false;               ///< computed in FP32 for 16-bit CPU tensors (`InitializeOptions::cpu_16bit`)
  std::vector<Cast> casts;               ///< made, or found, by amp's cast engine for this call

  int64_t cache_hits() const;
};

/// Records every operator call of the calling thread while it lives: what ran in which dtype, what was cast, and what came out
/// of the weight cache. Any level, amp or not; parameter names are those of the newest `initialize`. Of a backward pass it sees
/// what runs on the same thread: all on CPU tensors, nothing on CUDA tensors. Traces may nest: the outer one gets the inner
/// one's calls as well. Synchronises nothing; a traced call costs microseconds.
class trace {
 public:
  trace();
  ~trace();
  trace(const trace&) = delete;
  trace& operator=(const trace&) = delete;

  /// Ends the recording before the guard does.
  void stop();
  const std::vector<TracedOp>& ops() const;

  /// As a table for people, one call a line.
  std::string table() const;
  /// As JSON: {"ops": [{"name", "module", "backward", "inputs", "outputs", "casts": [{"from", "to", "cached"}],
  /// "in_float32"}, ...]}.
  std::string json() const;
  /// As CSV with a header; dtypes within a field are separated by spaces.
  std::string csv() const;
  /// Write these to a file. Errors: RuntimeError naming a file that cannot be written.
  void write_json(const std::string& path) const;
  void write_csv(const std::string& path) const;

 private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

/// The table.
std::ostream& operator<<(std::ostream& stream, const trace& trace);

}  // namespace apex::amp

namespace apex::amp::detail {

std::string trace_table(const std::vector<TracedOp>& ops);
std::string trace_json(const std::vector<TracedOp>& ops);
std::string trace_csv(const std::vector<TracedOp>& ops);

/// Errors: RuntimeError naming a file that cannot be written.
void write_text(const std::string& path, const std::string& text);

}  // namespace apex::amp::detail
