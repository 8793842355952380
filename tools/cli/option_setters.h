// Options into fields: what was not given leaves the field as it is.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "models/base/utf8.h"
#include "models/run_names.h"
#include "tools/cli/options.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

inline void set_whole(const Options& options, std::string_view option, std::int64_t least,
                      std::int64_t most, std::int64_t& target) {
  if (const std::string* text = options.find(option)) target = whole(option, *text, least, most);
}

template <models::Named Choice>
void set_choice(const Options& options, std::string_view option, Choice& target) {
  if (const std::string* text = options.find(option)) target = choice<Choice>(option, *text);
}

template <class Parse, class Target>
void set_parsed(const Options& options, std::string_view option, Parse parse, Target& target) {
  if (const std::string* text = options.find(option)) target = parse(option, *text);
}

// Throws where `option` was given although `needed` does not hold.
inline void require(const Options& options, std::string_view option, bool needed,
                    std::string_view why) {
  const std::string* value = options.find(option);
  if (value != nullptr && !needed)
    fail(ErrorKind::bad_input,
         fmt::format("--{}{}{}: {}", option, value->empty() ? "" : " ", shortened(*value), why));
}

}  // namespace plimsoll::tools
