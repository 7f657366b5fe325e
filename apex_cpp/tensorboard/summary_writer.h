#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace apex::detail {

/// A protobuf message as bytes, field by field (https://protobuf.dev/programming-guides/encoding). Hand-written because
/// libtorch exports an old protobuf's symbols, beside which a program cannot have another, and what is written here are a few
/// fields of three kinds.
class ProtobufMessage {
 public:
  ProtobufMessage& add(int field, int64_t value);
  ProtobufMessage& add(int field, float value);
  ProtobufMessage& add(int field, double value);
  /// `packed`, as repeated numbers are.
  ProtobufMessage& add(int field, const std::vector<double>& values);
  ProtobufMessage& add(int field, std::string_view bytes);
  ProtobufMessage& add(int field, const ProtobufMessage& message) { return add(field, message.bytes()); }

  std::string_view bytes() const { return bytes_; }

 private:
  void add_varint(uint64_t value);
  void add_key(int field, int wire_type);

  std::string bytes_;
};

/// The bytes of a number in the order of little-endian machines, which protobuf and TFRecord files have.
std::string little_endian(uint32_t value);
std::string little_endian(uint64_t value);

}  // namespace apex::detail

namespace apex {

/// A distribution in buckets: counts[i] values lie in [limits[i - 1], limits[i]), the first ones from `min` on. The sums are
/// over all `num` values.
struct SummaryHistogram {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;
};

/// Writes what TensorBoard shows: an event file, under the names of PyTorch's class. Not for several threads at a time.
/// PyTorch: `torch.utils.tensorboard.SummaryWriter`.
class SummaryWriter {
 public:
  /// Makes a new event file in the folder `log_dir`, which must exist; its name sorts behind those of the event files there.
  /// `purge_step`: what these have of this step and later ones is no longer shown, for a run that went back. Errors:
  /// std::runtime_error naming a file that cannot be written.
  explicit SummaryWriter(const std::string& log_dir, int64_t purge_step = 0);

  /// Float32, as TensorBoard keeps it.
  void add_scalar(const std::string& tag, double value, int64_t step);
  /// Errors: std::invalid_argument for another number of counts than of limits, or none.
  void add_histogram(const std::string& tag, const SummaryHistogram& histogram, int64_t step);
  /// Shown as Markdown.
  void add_text(const std::string& tag, std::string_view text, int64_t step);
  /// Hands everything added so far to the operating system. Errors: as the constructor.
  void flush();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace apex
