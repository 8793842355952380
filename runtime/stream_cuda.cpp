#include <cuda_runtime.h>

#include <string>

#include "models/base/error.h"
#include "runtime/stream.h"

namespace plimsoll::runtime {

namespace {

void expect(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

}  // namespace

Event::Event(Kind kind) {
  expect(cudaEventCreateWithFlags(&event_,
                                  kind == Kind::timed ? cudaEventDefault : cudaEventDisableTiming),
         "an event");
}
Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}
void Event::record(CUstream_st* stream) {
  expect(cudaEventRecord(event_, stream), "an event");
}
bool Event::reached() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  expect(status, "an event");
  return true;
}
void Event::wait() const {
  expect(cudaEventSynchronize(event_), "an event");
}

Stream::Stream(Priority priority) {
  int lowest = 0, highest = 0;
  expect(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "a stream");
  expect(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                      priority == Priority::high ? highest : lowest),
         "a stream");
}
Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}
void Stream::synchronize() const {
  expect(cudaStreamSynchronize(stream_), "a stream");
}

void wait_for(CUstream_st* stream, const Event& event) {
  expect(cudaStreamWaitEvent(stream, event.get(), 0), "an event");
}

}  // namespace plimsoll::runtime
