// Streams and events of the calling thread's GPU. Only a build with CUDA has them; no CUDA header
// is needed to include this.
#pragma once

#include <utility>

struct CUstream_st;  // cudaStream_t points to one
struct CUevent_st;

namespace plimsoll::runtime {

// Owns an event: a place in the order of a stream. Error{device} from all but the destructor.
class Event {
 public:
  enum class Kind { order, timed };
  explicit Event(Kind kind = Kind::order);
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  void record(CUstream_st* stream);
  bool reached() const;  // also before the first `record`
  void wait() const;  // the calling thread
  CUevent_st* get() const { return event_; }

 private:
  CUevent_st* event_ = nullptr;
};

// Owns a stream that does not wait for the default one.
class Stream {
 public:
  enum class Priority { normal, high };
  explicit Stream(Priority priority = Priority::normal);
  ~Stream();  // what is queued goes on
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  CUstream_st* get() const { return stream_; }
  void synchronize() const;

 private:
  CUstream_st* stream_ = nullptr;
};

// What is queued on `stream` from now on comes after `event`.
void wait_for(CUstream_st* stream, const Event& event);

}  // namespace plimsoll::runtime
