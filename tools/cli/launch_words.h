// The words of a launch line, taken one by one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tools::launch_words {

inline constexpr const char* kOrigin = "the launch line";

// Throws Error{bad_input}: "the launch line: <why>".
[[noreturn]] void refuse(const std::string& why);

// "--nproc-per-node" is nproc_per_node. "": no option; "-1" is a number.
std::string option_name(std::string_view word);

class Line {
 public:
  explicit Line(const std::vector<std::string>& words) : words_(words) {}
  bool done() const { return at_ >= words_.size(); }
  const std::string& peek() const { return words_[at_]; }
  std::string take();
  // The value of the option that was taken last, behind its "=" or the next word.
  std::string value_of(const std::string& word);

 private:
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
};

}  // namespace plimsoll::tools::launch_words
