#include "tools/cli/values.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "models/base/utf8.h"
#include "models/recompute.h"

namespace plimsoll::tools {

namespace {
// A value that goes into a message: hostile ones are long.
std::string shown(std::string_view text) {
  return shortened(text);
}

// mantissa * 10^exponent, exactly.
struct Decimal {
  std::int64_t mantissa = 0;
  int exponent = 0;
};

// The decimal number at the front of `text`, which loses it; nothing for no number, a sign, or more
// than 18 significant digits.
std::optional<Decimal> take_decimal(std::string_view& text) {
  Decimal number;
  std::size_t at = 0, digits = 0;
  bool point = false, any = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9') break;
    any = true;
    if (digits > 0 || c != '0') ++digits;
    if (digits > 18) return std::nullopt;
    number.mantissa = number.mantissa * 10 + (c - '0');
    if (point) --number.exponent;
  }
  if (!any) return std::nullopt;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::size_t begin = at + 1;
    if (begin < text.size() && text[begin] == '+') ++begin;
    int exponent = 0;
    const auto [end, error] =
        std::from_chars(text.data() + begin, text.data() + text.size(), exponent);
    if (error == std::errc() && exponent > -1000 && exponent < 1000) {
      number.exponent += exponent;
      at = static_cast<std::size_t>(end - text.data());
    }
  }
  text.remove_prefix(at);
  return number;
}

// number * unit, fractions dropped unless `exact`; nothing where a fraction is left over.
std::optional<std::int64_t> gemm(std::string_view option, std::string_view text, Decimal number,
                                 std::int64_t unit, bool exact) {
  using Wide = __int128;
  Wide value = static_cast<Wide>(number.mantissa) * unit;  // < 10^18 * 2^50 < 2^127
  for (; number.exponent > 0 && value != 0; --number.exponent) {
    value *= 10;
    if (value > std::numeric_limits<std::int64_t>::max()) break;
  }
  bool whole_left = true;
  for (; number.exponent < 0 && value != 0; ++number.exponent) {
    whole_left = whole_left && value % 10 == 0;
    value /= 10;
  }
  if (value > std::numeric_limits<std::int64_t>::max())
    refuse_value(option, text, "overflow: beyond 2^63");
  if (exact && !whole_left) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if ((a[i] | 0x20) != (b[i] | 0x20)) return false;
  return true;
}

std::string listed(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}
}  // namespace

void refuse_value(std::string_view option, std::string_view value, std::string_view why) {
  fail(ErrorKind::bad_input, fmt::format("--{} {}: {}", option, shown(value), why));
}

std::int64_t whole(std::string_view option, std::string_view text, std::int64_t least,
                   std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) refuse_value(option, text, "overflow: beyond 2^63");
  if (error != std::errc() || end != text.data() + text.size())
    refuse_value(option, text, "must be a whole number");
  if (value < least) refuse_value(option, text, fmt::format("must be at least {}", least));
  if (value > most) refuse_value(option, text, fmt::format("must be at most {}", most));
  return value;
}

Count count_value(std::string_view option, std::string_view text) {
  constexpr std::string_view accepted = "must be a positive whole number, as in 7.5e9, 7B or 350M";
  std::string_view rest = text;
  const std::optional<Decimal> number = take_decimal(rest);
  if (!number) refuse_value(option, text, accepted);
  std::int64_t unit = 1;
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> units{
      {{"K", 1'000}, {"M", 1'000'000}, {"B", 1'000'000'000}, {"T", 1'000'000'000'000}}};
  for (const auto& [name, value] : units)
    if (equal_ignoring_case(rest, name)) {
      unit = value;
      rest = "";
    }
  const auto value = rest.empty() ? gemm(option, text, *number, unit, true) : std::nullopt;
  if (!value || *value <= 0) refuse_value(option, text, accepted);
  return Count(*value);
}

Bytes size_value(std::string_view option, std::string_view text) {
  constexpr std::string_view accepted = "must be a size, as in 80GB, 79.6GiB, 512MiB or bytes";
  std::string_view rest = text;
  const std::optional<Decimal> number = take_decimal(rest);
  if (!number) refuse_value(option, text, accepted);
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 10> units{
      {{"", 1},
       {"B", 1},
       {"KB", 1'000},
       {"MB", 1'000'000},
       {"GB", 1'000'000'000},
       {"TB", 1'000'000'000'000},
       {"KiB", 1LL << 10},
       {"MiB", 1LL << 20},
       {"GiB", 1LL << 30},
       {"TiB", 1LL << 40}}};
  for (const auto& [name, unit] : units)
    if (equal_ignoring_case(rest, name))
      return Bytes(gemm(option, text, *number, unit, false).value_or(0));
  refuse_value(option, text, accepted);
}

double real_value(std::string_view option, std::string_view text, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    refuse_value(option, text, "must be a number");
  if (value < least || value > most)
    refuse_value(option, text, fmt::format("must be in {} … {}", least, most));
  return value;
}

bool yes_or_no(std::string_view option, std::string_view text) {
  constexpr std::array<std::string_view, 4> names{"yes", "no", "true", "false"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (equal_ignoring_case(names[i], text)) return i % 2 == 0;
  refuse_value(option, text, "must be yes or no");
}

DType float_dtype(std::string_view option, std::string_view text) {
  const std::optional<DType> dtype = dtype_from(text);
  if (dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16) return *dtype;
  refuse_value(option, text, "must be fp32, bf16 or fp16");
}

models::Recompute recompute_value(std::string_view option, std::string_view text) {
  if (const auto recompute = models::recompute_from(text)) return *recompute;
  if (text.starts_with("every:"))
    refuse_value(option, text, "must be every:K with a whole number K of layers, at least 1");
  if (text.starts_with("uniform:"))
    refuse_value(option, text, "must be uniform:N with a whole number N of layers, at least 1");
  if (text.starts_with("block:"))
    refuse_value(option, text, "must be block:N with a whole number N of layers, at least 1");
  if (text.starts_with("nth:"))
    refuse_value(option, text, "must be nth:N with a whole number N of layers, at least 1");
  if (text.starts_with("recursive:"))
    refuse_value(option, text, "must be recursive:C with a whole number C of layers, at least 1");
  if (text.starts_with("ops:"))
    refuse_value(
        option, text,
        "must be ops: and names of what is kept, as in ops:attention+q_proj, each once; or "
        "ops:torchtitan");
  constexpr std::array<std::string_view, 11> names{
      "none",  "selective",   "full",          "sqrt", "every:K",    "block:N",
      "nth:N", "recursive:C", "ops:NAME+NAME", "fit",  "budget:SIZE"};
  switch (name_index(option, text, names)) {
    case 4:
      refuse_value(option, text, "K is a number of layers, as in every:2");
    case 5:
      refuse_value(option, text, "N is how many of the first layers, as in block:12");
    case 6:
      refuse_value(option, text, "every Nth layer is a checkpoint, as in nth:2");
    case 7:
      refuse_value(option, text,
                   "C is how many layers' inputs are held at a time, as in recursive:8");
    case 8:
      refuse_value(option, text, "NAME is of what is kept, as in ops:attention+q_proj");
    default:
      refuse_value(option, text, "SIZE is a peak, as in budget:40GiB");
  }
}

std::vector<std::string> comma_list(std::string_view option, std::string_view text) {
  std::vector<std::string> items;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    if (item.empty()) refuse_value(option, text, "a name between commas is missing");
    items.emplace_back(item);
    if (comma == std::string_view::npos) return items;
    rest.remove_prefix(comma + 1);
  }
}

std::size_t name_index(std::string_view option, std::string_view text,
                       std::span<const std::string_view> names) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return i;
  const std::string near = nearest(text, names);
  refuse_value(option, text,
               near.empty() ? "must be one of " + listed(names)
                            : fmt::format("did you mean '{}'? (one of {})", near, listed(names)));
}

}  // namespace plimsoll::tools
