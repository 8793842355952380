// How the processes of a job end when one of them has failed.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "models/base/error.h"

namespace plimsoll::runtime::comm {

struct Ending {
  // Says "rank r: ...", on the rank that failed or that saw it fail; it may print.
  std::function<void(const Error&)> report;
  // On rank 0, before all processes end with this error, whichever rank's it is: writes down what
  // there is. On the rank that failed instead where rank 0 does not answer. Any thread may call it,
  // and it may be called more than once.
  std::function<void(const Error&)> record;

  void say(const Error& error) const {
    if (report) report(error);
  }
  void write(const Error& error) const {
    if (record) record(error);
  }
};

// 2: what was asked for cannot be; 3: it failed.
int status_of(const Error& error);

// "rank 2: ...", unless a rank is named already.
Error of_rank(int rank, const Error& error);

// An error as one text, its kind included, and back. Of other text: Error{communicator}.
std::string news_of(const Error& error);
Error error_of(const std::string& news);

// In a handler: the exception as the error that the job ends with. A std::bad_alloc, and a thread
// that the host does not start, are Error{out_of_memory}. May itself find no memory.
Error current_error();

// In a handler: `end(error)` with that error of this rank or, where there is no memory to say it,
// with `spare`, which was made when there was.
template <class End>
void end_with_current_error(int rank, const Error& spare, End end) {
  std::optional<Error> error;
  try {
    error.emplace(of_rank(rank, current_error()));
  } catch (const std::exception&) {
  }
  end(error ? *error : spare);
}

// What `spare` says.
Error no_host_memory(int rank);

// The error of another rank, which has said it already.
class Told final : public Error {
 public:
  explicit Told(const Error& error) : Error(error) {}
};

}  // namespace plimsoll::runtime::comm
