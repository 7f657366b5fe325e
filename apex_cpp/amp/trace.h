#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace apex::amp {

/// One operator call of the program, without the operators that it calls in turn.
struct TracedOp {
  struct Cast {
    c10::ScalarType from;
    c10::ScalarType to;
    bool cached;  ///< the weight cache had the cast; nothing was computed
  };

  std::string name;       ///< "aten::conv2d"; an overload follows a dot
  std::string module;     ///< path of the module whose parameter the call used, such as "layer1.0.conv1"; empty if unknown
  bool backward = false;  ///< called in a backward pass
  std::vector<c10::ScalarType> inputs;   ///< dtypes of the tensor arguments, in order, before any cast
  std::vector<c10::ScalarType> outputs;  ///< dtypes of the tensors in the result
  bool in_float32 = false;               ///< computed in FP32 for 16-bit CPU tensors (`InitializeOptions::cpu_16bit`)
  std::vector<Cast> casts;               ///< casts by amp's cast engine for this call

  int64_t cache_hits() const;
};

/// Records every operator call of the calling thread during its lifetime: its dtypes, its casts, and which casts came from the
/// weight cache. Works at any level and without amp; module names are those of the newest `initialize`. Sees the part of a
/// backward pass that runs on the same thread: all of it on CPU tensors, nothing on CUDA tensors. Traces may nest: the outer
/// trace also gets the inner trace's calls. Does not synchronise. A traced call costs microseconds.
class trace {
 public:
  trace();
  ~trace();
  trace(const trace&) = delete;
  trace& operator=(const trace&) = delete;

  /// Ends the recording early.
  void stop();
  const std::vector<TracedOp>& ops() const;

  /// The calls as a readable table, one call per line.
  std::string table() const;
  /// The calls as JSON: {"ops": [{"name", "module", "backward", "inputs", "outputs", "casts": [{"from", "to", "cached"}],
  /// "in_float32"}, ...]}.
  std::string json() const;
  /// The calls as CSV with a header. Dtypes within a field are separated by spaces.
  std::string csv() const;
  /// Write JSON or CSV to a file. Errors: RuntimeError naming a file that cannot be written.
  void write_json(const std::string& path) const;
  void write_csv(const std::string& path) const;

 private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

/// Writes `table()`.
std::ostream& operator<<(std::ostream& stream, const trace& trace);

}  // namespace apex::amp

namespace apex::amp::detail {

std::string trace_table(const std::vector<TracedOp>& ops);
std::string trace_json(const std::vector<TracedOp>& ops);
std::string trace_csv(const std::vector<TracedOp>& ops);

/// Errors: RuntimeError naming a file that cannot be written.
void write_text(const std::string& path, const std::string& text);

}  // namespace apex::amp::detail
