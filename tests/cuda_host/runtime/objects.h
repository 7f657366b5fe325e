#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

// What the handles of the fake runtime point to. All calls come from one thread of the system.
namespace cuda_host {

struct Stream;

// One call of cudaEventRecord.
struct Record {
  Stream* stream;
  bool done = false;
};

struct Operation {
  std::function<void()> work;
  std::shared_ptr<Record> waits_for;  // or nullptr
};

// An object whose destructor runs when the last graph that keeps it is gone.
struct UserObject {
  void* pointer;
  cudaHostFn_t destroy;
  unsigned references;

  void release(unsigned count);
};

// What a capture has recorded, shared by the graph, what is instantiated from it, and its replays that have not run yet.
struct Recording {
  std::vector<std::function<void()>> nodes;
  std::vector<std::pair<UserObject*, unsigned>> kept;

  Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();
};

// A cudaGraph_t or a cudaGraphExec_t.
struct Graph {
  std::shared_ptr<Recording> recording;
};

struct Event {
  std::shared_ptr<Record> record;  // the last one
  const Recording* captured_in = nullptr;
};

struct Stream {
  std::deque<Operation> pending;
  std::unique_ptr<Graph> capture;  // while it is captured
  bool is_capture_valid = true;
};

// The stream of a handle; of no handle, the default stream.
Stream& stream_of(cudaStream_t handle);

std::vector<Stream*> all_streams();
cudaStream_t add_stream();
void remove_stream(cudaStream_t handle);

// Runs the stream's operations, the operations that they wait for, and at random some of other streams.
void finish(Stream& stream);
void finish_all();
// Runs what comes before the end of a record.
void finish(const std::shared_ptr<Record>& record);
// Perhaps runs one operation of any stream: time passes.
void pass_time();

// Sets the error that cudaGetLastError returns, and returns it.
cudaError_t fail(cudaError_t error);

// Whether calls that a capture forbids are forbidden now. If so, the captures become invalid.
bool is_forbidden_by_capture();
// Makes the stream's capture invalid, and returns the error of this.
cudaError_t invalidate(Stream& stream, cudaError_t error);

// While it lives, code runs that must not call the runtime. Later calls are counted as forbidden.
class NoCalls {
 public:
  NoCalls();
  ~NoCalls();
  NoCalls(const NoCalls&) = delete;
  NoCalls& operator=(const NoCalls&) = delete;
};
bool are_calls_forbidden();

void count_wait();

}  // namespace cuda_host
