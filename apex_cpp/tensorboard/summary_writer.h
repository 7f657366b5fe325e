#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace apex::detail {

/// A protobuf message as bytes, built field by field (https://protobuf.dev/programming-guides/encoding). The protobuf library
/// is not used: libtorch exports symbols of an old version, which would collide.
class ProtobufMessage {
 public:
  ProtobufMessage& add(int field, int64_t value);
  ProtobufMessage& add(int field, float value);
  ProtobufMessage& add(int field, double value);
  /// A packed field of repeated numbers.
  ProtobufMessage& add(int field, const std::vector<double>& values);
  ProtobufMessage& add(int field, std::string_view bytes);
  ProtobufMessage& add(int field, const ProtobufMessage& message) { return add(field, message.bytes()); }

  std::string_view bytes() const { return bytes_; }

 private:
  void add_varint(uint64_t value);
  void add_key(int field, int wire_type);

  std::string bytes_;
};

/// The bytes of a number in little-endian order, as in protobuf and TFRecord files.
std::string little_endian(uint32_t value);
std::string little_endian(uint64_t value);

}  // namespace apex::detail

namespace apex {

/// A histogram: bucket i has counts[i] values in [limits[i - 1], limits[i]); the first bucket starts at `min`. The sums cover
/// all `num` values.
struct SummaryHistogram {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;
};

/// Writes TensorBoard event files; members have the names of PyTorch's class. Not thread-safe.
/// PyTorch: `torch.utils.tensorboard.SummaryWriter`.
class SummaryWriter {
 public:
  /// Creates an event file in the existing folder `log_dir`, with a name that sorts after those of other event files.
  /// `purge_step`: TensorBoard hides entries of this step and later steps in older files, for a run that resumes at an earlier
  /// step; 0 hides all. Errors: std::runtime_error with the file that cannot be written.
  explicit SummaryWriter(const std::string& log_dir, std::optional<int64_t> purge_step = std::nullopt);

  /// Stored as float32.
  void add_scalar(const std::string& tag, double value, int64_t step);
  /// Errors: std::invalid_argument if the numbers of counts and limits differ or are zero.
  void add_histogram(const std::string& tag, const SummaryHistogram& histogram, int64_t step);
  /// TensorBoard shows the text as Markdown.
  void add_text(const std::string& tag, std::string_view text, int64_t step);
  /// Writes all added entries to the file. Errors: those of the constructor.
  void flush();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace apex
