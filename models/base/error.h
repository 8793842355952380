// The one error type of plimsoll, and the one way to check a condition.
#pragma once

#include <exception>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace plimsoll {

enum class ErrorKind { bad_input, unsupported, out_of_memory, device, communicator, internal };

std::string_view name_of(ErrorKind kind);

using Where = std::source_location;

// `message` is for the user: it names the file or option, the value, and what is accepted.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message, Where where = Where::current())
      : kind_(kind), message_(std::move(message)), where_(where) {}

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const Where& where() const { return where_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_;
  Where where_;
};

[[noreturn]] void fail(ErrorKind kind, std::string message, Where where = Where::current());

// Throws Error{kind, message} unless `ok`. `message` may be a callable, so that text is only built
// when it is needed.
template <class Message>
void check(bool ok, ErrorKind kind, Message&& message, Where where = Where::current()) {
  if (ok) [[likely]]
    return;
  if constexpr (std::is_invocable_v<Message>)
    fail(kind, message(), where);
  else
    fail(kind, std::string(message), where);
}

}  // namespace plimsoll
