#include "tools/cli/launch_words.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/base/error.h"

namespace plimsoll::tools::launch_words {

void refuse(const std::string& why) {
  fail(ErrorKind::bad_input, fmt::format("{}: {}", kOrigin, why));
}

std::string option_name(std::string_view word) {
  if (word.size() < 2 || word[0] != '-' || (word[1] >= '0' && word[1] <= '9') || word[1] == '.')
    return "";
  word.remove_prefix(word.starts_with("--") ? 2 : 1);
  std::string name(word.substr(0, word.find('=')));
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string Line::take() {
  if (done()) refuse("ends too early");
  return words_[at_++];
}

std::string Line::value_of(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals != std::string::npos) return word.substr(equals + 1);
  if (done()) refuse(word + " needs a value");
  return take();
}

}  // namespace plimsoll::tools::launch_words
