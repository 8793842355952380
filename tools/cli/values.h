// Option values from text. Errors are Error{bad_input} and name the option, the value and what is
// accepted: "--zero 5: must be 0, 1, 2 or 3".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/base/dtype.h"
#include "models/base/nearest.h"
#include "models/base/quantity.h"
#include "models/run_names.h"

namespace plimsoll::tools {

// Throws Error{bad_input}: "--option value: why".
[[noreturn]] void refuse_value(std::string_view option, std::string_view value,
                               std::string_view why);

// A whole number in least … most, written as such.
std::int64_t whole(std::string_view option, std::string_view text, std::int64_t least,
                   std::int64_t most);

// "7.5e9", "7B", "350M", "8030261248": positive and whole; overflow beyond 2^63.
Count count_value(std::string_view option, std::string_view text);

// "80GB" (10^9), "79.6GiB" (2^30), "512MiB", bare bytes; fractions of a byte are dropped.
Bytes size_value(std::string_view option, std::string_view text);

double real_value(std::string_view option, std::string_view text, double least, double most);
bool yes_or_no(std::string_view option, std::string_view text);
DType float_dtype(std::string_view option, std::string_view text);  // fp32, bf16, fp16
models::Recompute recompute_value(std::string_view option, std::string_view text);

std::vector<std::string> comma_list(std::string_view option, std::string_view text);

// One of `names`, or an error that lists them and names the nearest; the index of it.
std::size_t name_index(std::string_view option, std::string_view text,
                       std::span<const std::string_view> names);

template <models::Named Choice>
Choice choice(std::string_view option, std::string_view text) {
  return static_cast<Choice>(name_index(option, text, models::kNamesOf<Choice>));
}

}  // namespace plimsoll::tools
