#include "runtime/comm/ending.h"

#include <array>

namespace plimsoll::runtime::comm {

namespace {

constexpr std::array kKinds{ErrorKind::bad_input, ErrorKind::unsupported,  ErrorKind::out_of_memory,
                            ErrorKind::device,    ErrorKind::communicator, ErrorKind::internal};

}  // namespace

int status_of(const Error& error) {
  return error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported ? 2 : 3;
}

Error of_rank(int rank, const Error& error) {
  const bool named = error.message().starts_with("rank ");
  return Error(error.kind(), (named ? "" : "rank " + std::to_string(rank) + ": ") + error.message(),
               error.where());
}

std::string news_of(const Error& error) {
  return std::string(name_of(error.kind())) + "\n" + error.message();
}

Error error_of(const std::string& news) {
  const auto end = news.find('\n');
  for (const ErrorKind kind : kKinds)
    if (end != std::string::npos && news.substr(0, end) == name_of(kind))
      return Error(kind, news.substr(end + 1));
  return Error(ErrorKind::communicator, news);
}

}  // namespace plimsoll::runtime::comm
