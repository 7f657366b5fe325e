#include <string>
#include <utility>

#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/runtime/launch.h"
#include "tests/cuda_host/runtime/objects.h"

namespace cuda_host {
namespace {

// Both of the only thread.
cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
cudaError_t last_error = cudaSuccess;

int64_t forbidden_count = 0;
int callbacks = 0;  // that run now

}  // namespace

void UserObject::release(unsigned count) {
  references -= count;
  if (references > 0) return;
  {
    const NoCalls no_calls;
    destroy(pointer);
  }
  delete this;
}

Recording::~Recording() {
  for (const auto& [object, count] : kept) object->release(count);
}

NoCalls::NoCalls() { ++callbacks; }
NoCalls::~NoCalls() { --callbacks; }

bool are_calls_forbidden() {
  if (callbacks > 0) ++forbidden_count;
  return callbacks > 0;
}

int64_t forbidden_calls() { return forbidden_count; }

cudaError_t fail(cudaError_t error) { return last_error = error; }

cudaError_t invalidate(Stream& stream, cudaError_t error) {
  ++forbidden_count;
  stream.is_capture_valid = false;
  return fail(error);
}

bool is_forbidden_by_capture() {
  if (are_calls_forbidden()) return true;
  if (mode == cudaStreamCaptureModeRelaxed) return false;
  bool found = false;
  for (Stream* const stream : all_streams()) {
    if (stream->capture == nullptr) continue;
    invalidate(*stream, cudaErrorStreamCaptureUnsupported);
    found = true;
  }
  return found;
}

}  // namespace cuda_host

using namespace cuda_host;

namespace {

Graph& graph_of(cudaGraph_t handle) { return *reinterpret_cast<Graph*>(handle); }
Graph& graph_of(cudaGraphExec_t handle) { return *reinterpret_cast<Graph*>(handle); }

cudaStreamCaptureStatus status_of(const Stream& stream) {
  if (stream.capture == nullptr) return cudaStreamCaptureStatusNone;
  return stream.is_capture_valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorString(cudaError_t error) {
  static std::string text;
  text = "error " + std::to_string(error) + " of the fake runtime";
  return text.c_str();
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* other) {
  std::swap(*other, mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  Stream& stream = stream_of(handle);
  if (handle == nullptr || stream.capture != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  stream.capture = std::make_unique<Graph>(Graph{std::make_shared<Recording>()});
  stream.is_capture_valid = true;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Stream& stream = stream_of(handle);
  const std::unique_ptr<Graph> capture = std::move(stream.capture);
  if (capture == nullptr) return fail(cudaErrorIllegalState);
  *graph = nullptr;
  if (!stream.is_capture_valid) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(new Graph{capture->recording});
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = status_of(stream_of(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  const Stream& stream = stream_of(handle);
  *status = status_of(stream);
  if (stream.capture == nullptr) return cudaSuccess;
  if (id != nullptr) *id = reinterpret_cast<uintptr_t>(stream.capture->recording.get());
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(stream.capture.get());
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Graph{graph_of(graph).recording});
  return cudaSuccess;
}

// The replay keeps the recording alive until it has run.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const std::shared_ptr<Recording> recording = graph_of(exec).recording;
  for (size_t i = 0; i < recording->nodes.size(); ++i) enqueue(stream, [recording, i] { recording->nodes[i](); });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete &graph_of(exec);
  return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy, unsigned references, unsigned) {
  *object = reinterpret_cast<cudaUserObject_t>(new UserObject{pointer, destroy, references});
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count, unsigned flags) {
  auto* const object = reinterpret_cast<UserObject*>(handle);
  if (flags != cudaGraphUserObjectMove) object->references += count;
  graph_of(graph).recording->kept.emplace_back(object, count);
  return cudaSuccess;
}

}  // extern "C"
