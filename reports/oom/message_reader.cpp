#include "reports/oom/message_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace plimsoll::reports {

namespace {

constexpr std::string_view kOutOfMemory = "outofmemory";
// From one figure of a message to the next; the longest words between two are ")allocatedinprivate
// pools(e.g.,CUDAGraphs),and" and process numbers.
constexpr std::size_t kLongestGap = 100;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_capital(char c) {
  return c >= 'A' && c <= 'Z';
}

std::string_view before(std::string_view text, std::size_t at, std::size_t most) {
  const std::size_t n = std::min(at, most);
  return text.substr(at - n, n);
}

std::optional<std::int64_t> whole_number(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end == digits.data()) return std::nullopt;
  return value;
}

// The number at the front, or at the end.
std::optional<std::int64_t> leading_number(std::string_view text) {
  return whole_number(text.substr(0, std::min<std::size_t>(text.size(), 18)));
}
std::optional<std::int64_t> trailing_number(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && n < 18 && is_digit(text[text.size() - 1 - n])) ++n;
  return n == 0 ? std::nullopt : whole_number(text.substr(text.size() - n));
}

// format_size() of c10: bytes, KiB, MiB, GiB.
struct Unit {
  std::string_view name;
  int shift;
};
constexpr std::array<Unit, 5> kUnits{
    {{"bytes", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};

struct Figure {
  std::size_t begin = 0, end = 0;
  std::optional<PrintedSize> size;  // nothing: larger than any memory, or no number
};

// "388.00MiB"; the digits begin at `at`.
std::optional<Figure> figure_at(std::string_view text, std::size_t at) {
  std::size_t end = at, point = std::string_view::npos;
  while (end < text.size() && end - at < 40 &&
         (is_digit(text[end]) || (text[end] == '.' && point == std::string_view::npos))) {
    if (text[end] == '.') point = end;
    ++end;
  }
  const auto unit = std::ranges::find_if(
      kUnits, [&](const Unit& u) { return text.substr(end).starts_with(u.name); });
  if (unit == kUnits.end()) return std::nullopt;
  const std::string_view digits = text.substr(at, end - at);
  const std::size_t decimals = point == std::string_view::npos ? 0 : end - point - 1;
  Figure figure{at, end + unit->name.size(), {}};
  double value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const double bytes = std::ldexp(value, unit->shift);
  if (error != std::errc() || bytes > 0x1p60) return figure;
  const double half =
      unit->shift == 0 ? 0
                       : std::ldexp(0.5, unit->shift) / std::pow(10, static_cast<double>(decimals));
  figure.size = {Bytes(std::llround(bytes)), Bytes(static_cast<std::int64_t>(std::ceil(half)))};
  return figure;
}

std::optional<Figure> next_figure(std::string_view text, std::size_t from, std::size_t most) {
  const std::size_t end = std::min(text.size(), from + most);
  for (std::size_t at = from; at < end; ++at) {
    if (!is_digit(text[at])) continue;
    if (const auto figure = figure_at(text, at)) return figure;
    while (at + 1 < end && is_digit(text[at + 1])) ++at;
  }
  return std::nullopt;
}

// Which figure it is, by the words around it.
struct Rule {
  std::string_view before, after;  // "": whatever
  std::optional<PrintedSize> OomMessage::*field;
};
constexpr std::array kRules = {
    Rule{"llocate", "", &OomMessage::tried},  // also "Tried t allocate" of a screen that was read
    Rule{"Requested:", "", &OomMessage::tried},
    Rule{"", "totalcapacity", &OomMessage::capacity},
    Rule{"totalcapacityof", "", &OomMessage::capacity},
    Rule{"totalcapactyof", "", &OomMessage::capacity},  // so in PyTorch 2.1
    Rule{"Devicelimit:", "", &OomMessage::capacity},
    Rule{"ofwhich", "", &OomMessage::free},
    Rule{"(accordingtoCUDA):", "", &OomMessage::free},
    Rule{"", "free", &OomMessage::free},
    Rule{"", "alreadyallocated", &OomMessage::allocated},
    Rule{"", "isallocatedby", &OomMessage::allocated},
    Rule{"allocatedmemory", "", &OomMessage::allocated},
    Rule{"Currentlyallocated:", "", &OomMessage::allocated},
    Rule{"", "allocatedinprivatepools", &OomMessage::private_pools},
    Rule{"", "reservedintotal", &OomMessage::reserved},
    Rule{"", "isreservedbyPyTorch", &OomMessage::unallocated},
    Rule{"thisprocesshas", "", &OomMessage::in_use},
    Rule{"", "allowed", &OomMessage::allowed},
    Rule{"fraction):", "", &OomMessage::allowed},
};

// "Process123has"
std::optional<std::int64_t> process_before(std::string_view text, std::size_t at) {
  std::string_view words = before(text, at, 40);
  if (!words.ends_with("has")) return std::nullopt;
  words.remove_suffix(3);
  const auto pid = trailing_number(words);
  if (!pid) return std::nullopt;
  while (!words.empty() && is_digit(words.back())) words.remove_suffix(1);
  return words.ends_with("Process") ? pid : std::nullopt;
}

// Of a card; a request may be any size.
constexpr Bytes kMostOfACard = Bytes(std::int64_t{1} << 50);

void take_figure(std::string_view text, const Figure& figure, OomMessage& message) {
  const std::string_view words = before(text, figure.begin, 40);
  const std::string_view rest = text.substr(figure.end, 40);
  const bool is_of_a_card = figure.size && figure.size->bytes <= kMostOfACard;
  if (const auto pid = process_before(text, figure.begin)) {
    if (is_of_a_card) message.processes.push_back({*pid, *figure.size});
    return;
  }
  for (const Rule& rule : kRules) {
    if (!words.ends_with(rule.before) || !rest.starts_with(rule.after)) continue;
    std::optional<PrintedSize>& field = message.*rule.field;
    if (field) return;
    if (is_of_a_card || rule.field == &OomMessage::tried) field = figure.size;
    // The async backend prints the largest number there is where no limit was set.
    if (!field && rule.field != &OomMessage::allowed)
      message.unreadable.emplace_back(text.substr(figure.begin, figure.end - figure.begin));
    return;
  }
}

void take_figures(std::string_view text, std::size_t from, OomMessage& message) {
  std::size_t at = from;
  while (const auto figure = next_figure(text, at, kLongestGap)) {
    take_figure(text, *figure, message);
    at = figure->end;
  }
}

// "GPU0hasatotal…", "(GPU0;", "(NPU0;"
void take_gpu(std::string_view text, OomMessage& message) {
  for (std::size_t at = text.find("PU"); at != std::string_view::npos;
       at = text.find("PU", at + 2)) {
    const std::string_view rest = text.substr(at + 2);
    const auto number = leading_number(rest);
    if (!number) continue;
    const std::string_view behind = rest.substr(std::to_string(*number).size());
    if (!behind.starts_with("has") && !behind.starts_with(";")) continue;
    message.gpu = number;
    return;
  }
}

// The letters that stand before `at`: "CUDA", also behind "…Error:".
std::string device_before(std::string_view text, std::size_t at) {
  std::size_t n = 0;
  while (n < 5 && n < at && is_letter(text[at - 1 - n])) ++n;
  std::string_view word = text.substr(at - n, n);
  for (const std::string_view name : {"CUDA", "HIP", "XPU", "NPU", "MUSA"})
    if (word.ends_with(name)) return std::string(name);
  return word.ends_with("Cuda") || word.ends_with("cuda") ? "CUDA" : "";
}

std::optional<OomMessage> read_allocator(std::string_view text, std::size_t word) {
  const std::size_t behind = word + kOutOfMemory.size();
  OomMessage message;
  message.device = device_before(text, word);
  const std::string_view rest = text.substr(behind, kLongestOom);
  if (!rest.starts_with(".Trie")) {
    // Cut short, or from who prints the kind of an error alone.
    if (message.device.empty() ||
        !before(text, word - message.device.size(), 6).ends_with("Error:"))
      return std::nullopt;
    return message;
  }
  if (rest.substr(0, 40).find("morethan1EB") != std::string_view::npos) {
    message.kind = OomKind::overflow;
    return message;
  }
  // Behind "If reserved memory is …" is advice.
  const std::string_view body =
      rest.substr(0, std::min(rest.find(".Trie", 1), rest.find("Ifreserved")));
  take_figures(body, 0, message);
  take_gpu(body.substr(0, 120), message);
  return message;
}

// "Allocationondevice0wouldexceedallowedmemory.(outofmemory)"
std::optional<OomMessage> read_async(std::string_view text, std::size_t word) {
  constexpr std::string_view kBefore = "wouldexceedallowedmemory.(";
  if (!before(text, word, kBefore.size()).ends_with(kBefore)) return std::nullopt;
  OomMessage message;
  message.kind = OomKind::async_allocator;
  message.gpu = trailing_number(before(text, word - kBefore.size(), 20));
  take_figures(text.substr(0, word + kLongestOom), word + kOutOfMemory.size(), message);
  return message;
}

// "CUDAerror:", "CUDAdrivererror:", "HIPerror:", and NCCL's "Cudafailure2'".
std::optional<OomMessage> read_driver(std::string_view text, std::size_t word) {
  std::string_view words = before(text, word, 40);
  OomMessage message;
  if (const std::size_t at = words.rfind("failure"); at != std::string_view::npos) {
    if (words.size() - at > std::string_view("failure").size() + 8) return std::nullopt;
    message.kind = OomKind::nccl;
    message.library = "NCCL";
    return message;
  }
  while (!words.empty() && !is_letter(words.back())) words.remove_suffix(1);
  if (!words.ends_with("error")) {
    if (!words.ends_with("Error") || !text.substr(word + kOutOfMemory.size()).starts_with("atline"))
      return std::nullopt;
    message.kind = OomKind::library;
    message.library = "bitsandbytes";
    return message;
  }
  words.remove_suffix(5);
  for (const std::string_view part : {"driver", "runtime"})
    if (words.ends_with(part)) words.remove_suffix(part.size());
  message.kind = OomKind::driver;
  message.device = device_before(words, words.size());
  if (message.device.empty()) return std::nullopt;
  return message;
}

// "CUBLAS_STATUS_ALLOC_FAILED", by a part of it.
std::optional<OomMessage> read_status(std::string_view text, std::size_t word) {
  std::size_t begin = word, end = word;
  const auto is_part = [](char c) { return is_capital(c) || c == '_'; };
  while (begin > 0 && word - begin < 64 && is_part(text[begin - 1])) --begin;
  while (end < text.size() && end - word < 64 && is_part(text[end])) ++end;
  const std::string_view name = text.substr(begin, end - begin);
  OomMessage message;
  if (name == "CUDA_ERROR_OUT_OF_MEMORY") {
    message.kind = OomKind::driver;
    message.device = "CUDA";
    return message;
  }
  const bool known = name.starts_with("CU") || name.starts_with("HIP") || name.starts_with("ROC");
  if (!known || !name.ends_with("FAILED")) return std::nullopt;
  message.kind = OomKind::library;
  message.library = std::string(name);
  return message;
}

// "FailedtoCUDAcallocasync4bytes", "FailedtoCUDAhostalloc8bytes"
OomMessage read_nccl(std::string_view text, std::size_t word) {
  OomMessage message;
  message.kind = text.substr(word).starts_with("FailedtoCUDAhost") ? OomKind::host : OomKind::nccl;
  message.library = "NCCL";
  if (const auto figure = next_figure(text, word, 40)) message.tried = figure->size;
  return message;
}

std::optional<OomMessage> read_host(std::string_view text, std::size_t word) {
  OomMessage message;
  message.kind = OomKind::host;
  if (const auto figure = next_figure(text, word, 60)) message.tried = figure->size;
  return message;
}

}  // namespace

bool may_be_oom_message(std::string_view text, std::size_t word) {
  const std::string_view here = text.substr(word);
  if (!here.starts_with(kOutOfMemory)) return true;
  if (here.substr(kOutOfMemory.size()).starts_with(".Trie")) return true;
  const std::string_view words = before(text, word, 16);
  return words.find("rror") != std::string_view::npos || words.ends_with("memory.(") ||
         words.find("failure") != std::string_view::npos;
}

std::optional<OomMessage> read_oom_message(std::string_view text, std::size_t word) {
  const std::string_view here = text.substr(word);
  if (here.starts_with("FailedtoCUDA")) return read_nccl(text, word);
  if (here.starts_with("memory:you")) return read_host(text, word);
  if (here.starts_with("ALLOC") || here.starts_with("ERROR")) return read_status(text, word);
  if (here.starts_with("Error")) {  // cudaErrorMemoryAllocation, hipErrorOutOfMemory
    const std::string_view words = before(text, word, 4);
    if (!words.ends_with("cuda") && !words.ends_with("hip")) return std::nullopt;
    OomMessage message;
    message.kind = OomKind::driver;
    message.device = words.ends_with("hip") ? "HIP" : "CUDA";
    return message;
  }
  if (auto message = read_async(text, word)) return message;
  if (auto message = read_allocator(text, word)) return message;
  return read_driver(text, word);
}

}  // namespace plimsoll::reports
