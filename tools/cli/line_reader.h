// Lines of a file or of standard input, as they come.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace plimsoll::tools {

// What has been read is handed out before more is waited for. Error{bad_input}: a file that cannot
// be read, a line of more than 16 MiB.
class LineReader {
 public:
  explicit LineReader(const std::string& path);  // "-": standard input
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Whether a whole line is there already.
  bool ready() const { return buffer_.find('\n', at_) != std::string::npos; }

  // The next line without its end; nothing at the end of the input.
  std::optional<std::string_view> next();

 private:
  std::string_view take(std::size_t end, std::size_t next);
  void fill();

  int descriptor_ = -1;
  std::string path_;
  std::string buffer_;
  std::size_t at_ = 0;
  bool ended_ = false;
};

}  // namespace plimsoll::tools
