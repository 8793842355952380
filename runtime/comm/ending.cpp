#include "runtime/comm/ending.h"

#include <array>
#include <new>
#include <system_error>

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

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::out_of_memory, "the host has no memory left");
  } catch (const std::system_error& error) {
    const bool scarce = error.code() == std::errc::resource_unavailable_try_again ||
                        error.code() == std::errc::not_enough_memory;
    return Error(
        scarce ? ErrorKind::out_of_memory : ErrorKind::internal,
        std::string(scarce ? "the host gives no more threads or memory: " : "") + error.what());
  } catch (const std::exception& error) {
    return Error(ErrorKind::internal, error.what());
  } catch (...) {
    return Error(ErrorKind::internal, "an exception of unknown type");
  }
}

Error no_host_memory(int rank) {
  return Error(ErrorKind::out_of_memory, "rank " + std::to_string(rank) +
                                             ": the host has no memory left, not even to say "
                                             "for what");
}

}  // namespace plimsoll::runtime::comm
