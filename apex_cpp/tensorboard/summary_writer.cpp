#include <apex_cpp/tensorboard/summary_writer.h>

#include <apex_cpp/files/atomic_file.h>

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace apex::detail {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class Unsigned>
std::string bytes_of(Unsigned value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

template <class Unsigned, class Number>
Unsigned bits_of(Number number) {
  Unsigned bits = 0;
  static_assert(sizeof bits == sizeof number);
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

}  // namespace

std::string little_endian(uint32_t value) { return bytes_of(value); }
std::string little_endian(uint64_t value) { return bytes_of(value); }

void ProtobufMessage::add_varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
  bytes_ += static_cast<char>(value);
}

void ProtobufMessage::add_key(int field, int wire_type) { add_varint(static_cast<uint64_t>(field << 3 | wire_type)); }

ProtobufMessage& ProtobufMessage::add(int field, int64_t value) {
  add_key(field, kVarint);
  add_varint(static_cast<uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::add(int field, float value) {
  add_key(field, kFixed32);
  bytes_ += little_endian(bits_of<uint32_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::add(int field, double value) {
  add_key(field, kFixed64);
  bytes_ += little_endian(bits_of<uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::add(int field, const std::vector<double>& values) {
  std::string packed;
  for (const double value : values) packed += little_endian(bits_of<uint64_t>(value));
  return add(field, std::string_view(packed));
}

ProtobufMessage& ProtobufMessage::add(int field, std::string_view bytes) {
  add_key(field, kBytes);
  add_varint(bytes.size());
  bytes_ += bytes;
  return *this;
}

}  // namespace apex::detail

namespace apex {
namespace {

using detail::little_endian;
using detail::ProtobufMessage;

constexpr const char* kFileName = "events.out.tfevents.";
constexpr const char* kVersion = "brain.Event:2";

double now_in_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// ---- files ----

// The time in seconds in an event file's name; 0 for another file.
int64_t second_in(const std::string& file) {
  return file.rfind(kFileName, 0) == 0 ? std::atoll(file.c_str() + std::char_traits<char>::length(kFileName)) : 0;
}

// TensorBoard reads files in the order of their names, so each gets another second.
int64_t next_second(const std::string& folder) {
  auto second = static_cast<int64_t>(now_in_seconds());
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    second = std::max(second, second_in(entry.path().filename().string()) + 1);
  return second;
}

std::string host() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 && *name ? name : "localhost";
}

std::string new_path(const std::string& folder) {
  char second[32];
  std::snprintf(second, sizeof second, "%010" PRId64, next_second(folder));
  return folder + "/" + kFileName + second + "." + host() + "." + std::to_string(getpid()) + ".0";
}

uint32_t masked_crc(std::string_view bytes) {
  amp::detail::Crc32c crc;
  crc.add(bytes.data(), bytes.size());
  return ((crc.value() >> 15) | (crc.value() << 17)) + 0xa282ead8;
}

// Appends a record to a TFRecord file.
void append(std::ofstream& file, const ProtobufMessage& message) {
  const auto data = message.bytes();
  const auto length = little_endian(static_cast<uint64_t>(data.size()));
  file << length << little_endian(masked_crc(length)) << data << little_endian(masked_crc(data));
}

// ---- messages, by the field numbers of TensorFlow's event.proto, summary.proto and tensor.proto ----

ProtobufMessage event_at(int64_t step) {
  ProtobufMessage event;
  event.add(1, now_in_seconds()).add(2, step);
  return event;
}

ProtobufMessage event_of(const ProtobufMessage& value, int64_t step) {
  return event_at(step).add(5, ProtobufMessage().add(1, value));
}

ProtobufMessage start_of_session() {
  constexpr int64_t kStart = 1;
  return ProtobufMessage().add(1, kStart);
}

ProtobufMessage as_message(const SummaryHistogram& histogram) {
  ProtobufMessage message;
  message.add(1, histogram.min).add(2, histogram.max).add(3, histogram.num).add(4, histogram.sum);
  message.add(5, histogram.sum_squares).add(6, histogram.limits).add(7, histogram.counts);
  return message;
}

// A string tensor with one element.
ProtobufMessage as_tensor(std::string_view text) {
  constexpr int64_t kString = 7, kOneElement = 1;
  const auto shape = ProtobufMessage().add(2, ProtobufMessage().add(1, kOneElement));
  return ProtobufMessage().add(1, kString).add(2, shape).add(8, text);
}

ProtobufMessage shown_by(std::string_view plugin) { return ProtobufMessage().add(1, ProtobufMessage().add(1, plugin)); }

}  // namespace

SummaryWriter::SummaryWriter(const std::string& log_dir, std::optional<int64_t> purge_step) : path_(new_path(log_dir)) {
  file_.open(path_, std::ios::binary);
  append(file_, event_at(0).add(3, std::string_view(kVersion)));
  if (purge_step) append(file_, event_at(*purge_step).add(7, start_of_session()));
  flush();
}

void SummaryWriter::add_scalar(const std::string& tag, double value, int64_t step) {
  append(file_, event_of(ProtobufMessage().add(1, tag).add(2, static_cast<float>(value)), step));
}

void SummaryWriter::add_histogram(const std::string& tag, const SummaryHistogram& histogram, int64_t step) {
  if (histogram.counts.empty() || histogram.counts.size() != histogram.limits.size())
    throw std::invalid_argument("SummaryWriter: the histogram '" + tag + "' has " + std::to_string(histogram.counts.size()) +
                                " counts and " + std::to_string(histogram.limits.size()) + " limits");
  append(file_, event_of(ProtobufMessage().add(1, tag).add(5, as_message(histogram)), step));
}

void SummaryWriter::add_text(const std::string& tag, std::string_view text, int64_t step) {
  append(file_, event_of(ProtobufMessage().add(1, tag).add(8, as_tensor(text)).add(9, shown_by("text")), step));
}

void SummaryWriter::flush() {
  if (!file_.flush()) throw std::runtime_error("cannot write '" + path_ + "'");
}

}  // namespace apex
