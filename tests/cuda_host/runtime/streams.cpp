#include <algorithm>
#include <stdexcept>

#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/runtime/launch.h"
#include "tests/cuda_host/runtime/objects.h"

namespace cuda_host {
namespace {

constexpr uint64_t kOtherStreams = 4;  // one of so many steps goes to a random stream

int64_t launch_count = 0;
bool is_running = false;  // an operation: it must not make others run

std::vector<std::unique_ptr<Stream>>& created_streams() {
  static auto* const streams = new std::vector<std::unique_ptr<Stream>>;  // used until the program's end
  return *streams;
}

Stream& default_stream() {
  static auto* const stream = new Stream;
  return *stream;
}

void run(const std::function<void()>& work) {
  if (is_running) throw std::logic_error("work of a stream waits for a stream");
  struct Running {
    Running() { is_running = true; }
    ~Running() { is_running = false; }
  } const running;
  work();
}

// One operation; first, what it waits for.
void step(Stream& stream) {
  const std::shared_ptr<Record> record = stream.pending.front().waits_for;
  if (record != nullptr && !record->done) return step(*record->stream);
  const Operation operation = std::move(stream.pending.front());
  stream.pending.pop_front();
  run(operation.work);
}

}  // namespace

Stream& stream_of(cudaStream_t handle) { return handle == nullptr ? default_stream() : *reinterpret_cast<Stream*>(handle); }

std::vector<Stream*> all_streams() {
  std::vector<Stream*> streams = {&default_stream()};
  for (const auto& stream : created_streams()) streams.push_back(stream.get());
  return streams;
}

cudaStream_t add_stream() {
  created_streams().push_back(std::make_unique<Stream>());
  return reinterpret_cast<cudaStream_t>(created_streams().back().get());
}

void remove_stream(cudaStream_t handle) {
  finish(stream_of(handle));
  auto& streams = created_streams();
  const auto is_it = [&](const auto& stream) { return stream.get() == &stream_of(handle); };
  streams.erase(std::remove_if(streams.begin(), streams.end(), is_it), streams.end());
}

void pass_time() {
  const std::vector<Stream*> streams = all_streams();
  Stream& stream = *streams[scheduled_choice(streams.size())];
  if (!stream.pending.empty()) step(stream);
}

void finish(Stream& stream) {
  while (!stream.pending.empty()) {
    if (scheduled_choice(kOtherStreams) == 0) {
      pass_time();
    } else {
      step(stream);
    }
  }
}

void finish(const std::shared_ptr<Record>& record) {
  while (record != nullptr && !record->done) step(*record->stream);
}

void finish_all() {
  for (Stream* const stream : all_streams()) finish(*stream);
}

void finish_device() { finish_all(); }

int64_t launches() { return launch_count; }

void enqueue(cudaStream_t handle, std::function<void()> work) {
  Stream& stream = stream_of(handle);
  if (stream.capture != nullptr) {
    stream.capture->recording->nodes.push_back(std::move(work));
  } else {
    stream.pending.push_back({std::move(work), nullptr});
  }
}

cudaError_t launch(const Grid& grid, cudaStream_t stream, std::function<void()> thread) {
  constexpr unsigned kMostThreads = 1024, kMostInY = 65535;
  const bool is_valid = grid.blocks.x > 0 && grid.blocks.y > 0 && grid.blocks.y <= kMostInY && grid.blocks.z == 1 &&
                        grid.threads > 0 && grid.threads <= kMostThreads;
  if (!is_valid) return fail(cudaErrorInvalidConfiguration);
  ++launch_count;
  enqueue(stream, [grid, thread = std::move(thread)] { run_grid(grid, thread); });
  return cudaSuccess;
}

}  // namespace cuda_host

using namespace cuda_host;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  *stream = add_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  remove_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  if (stream.capture != nullptr) return invalidate(stream, cudaErrorStreamCaptureUnsupported);
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  count_wait();
  finish(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  pass_time();
  return stream_of(handle).pending.empty() ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize() {
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  count_wait();
  finish_all();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (are_calls_forbidden()) return fail(cudaErrorNotPermitted);
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  Event& event = *reinterpret_cast<Event*>(handle);
  Stream& stream = stream_of(stream_handle);
  event = {};
  if (stream.capture != nullptr) {
    event.captured_in = stream.capture->recording.get();
    return cudaSuccess;
  }
  const auto record = std::make_shared<Record>(Record{&stream});
  event.record = record;
  stream.pending.push_back({[record] { record->done = true; }, nullptr});
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return fail(cudaErrorNotSupported); }

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  pass_time();
  const Event& event = *reinterpret_cast<Event*>(handle);
  return event.record == nullptr || event.record->done ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const Event& event = *reinterpret_cast<Event*>(handle);
  if (event.captured_in != nullptr) return fail(cudaErrorCapturedEvent);
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  count_wait();
  finish(event.record);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  Stream& stream = stream_of(handle);
  const Event& event = *reinterpret_cast<Event*>(event_handle);
  const Recording* const here = stream.capture == nullptr ? nullptr : stream.capture->recording.get();
  if (event.captured_in != here && event.captured_in != nullptr) {
    throw std::logic_error("the fake runtime has no captures of several streams");
  }
  if (here != nullptr && event.record != nullptr) return invalidate(stream, cudaErrorStreamCaptureIsolation);
  if (event.record != nullptr) stream.pending.push_back({[] {}, event.record});
  return cudaSuccess;
}

}  // extern "C"
