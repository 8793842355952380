// Where answers go. A path that cannot be written is Error{bad_input}, a full disk Error{internal}.
#pragma once

#include <string>
#include <string_view>

#include "reports/text.h"

namespace plimsoll::tools {

// Writes to standard output. A reader who has gone away (`| head`) is no failure: returns false.
bool print(std::string_view text);

// "plimsoll: …" on standard error; a message may have several lines.
void say(std::string_view message);

// Colour only on a terminal, without NO_COLOR, and not where TERM=dumb; blocks where the locale is
// UTF-8; always 80 columns, so that a table looks the same in a file.
reports::Terminal standard_output_terminal();

// A file that appears whole or not at all: written beside `path`, renamed over it by commit(). What
// is no regular file (/dev/null, a pipe) is written directly.
class AtomicFile {
 public:
  // `option`: who named the file, for messages.
  explicit AtomicFile(std::string path, std::string option = "--json");
  ~AtomicFile();  // without commit(): as if it had never been
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view text);
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* what);

  std::string path_, option_;
  std::string temporary_;  // "": written directly
  int descriptor_ = -1;
};

}  // namespace plimsoll::tools
