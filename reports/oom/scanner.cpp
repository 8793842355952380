#include "reports/oom/scanner.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "reports/oom/message_reader.h"

namespace plimsoll::reports {

namespace {

constexpr std::size_t kWindow = 1 << 20;
constexpr std::size_t kContext = 512;  // kept before what is looked at
constexpr std::size_t kBehind = kLongestOom + kContext;
constexpr std::size_t kMostGroups = 32, kMostRanks = 1024;
constexpr std::int64_t kOneMessage = 600;  // an error's name is repeated in its explanation
// deepspeed/runtime/zero/stage3.py: "2 pytorch allocator cache flushes since last step."
constexpr std::string_view kFlushes = "pytorchallocatorcacheflushessince";

// Everything that is more than itself: blanks and control characters, escapes.
constexpr std::array<bool, 256> kSpecial = [] {
  std::array<bool, 256> special{};
  for (std::size_t c = 0; c <= 0x20; ++c) special[c] = true;
  for (const std::size_t c : {0x5C, 0x7F, 0xC2}) special[c] = true;  // a backslash, DEL, C2 A0
  return special;
}();

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// What launchers put before a line: "[rank3]:" and "[default3]:" (torchrun), "[1,3]<stderr>:"
// (mpirun), "3:" (srun -l).
struct Prefix {
  std::size_t length = 0;
  std::optional<std::int64_t> rank;
};

Prefix bracketed(std::string_view text) {
  std::size_t at = 1;
  for (const std::string_view word : {"rank", "Rank", "default"})
    if (text.substr(at).starts_with(word)) at += word.size();
  std::int64_t number = 0;
  std::size_t digits = 0;
  for (; at < text.size() && digits < 9; ++at) {
    if (text[at] == ',' && digits > 0) {
      number = 0;
      digits = 0;
    } else if (is_digit(text[at])) {
      number = 10 * number + (text[at] - '0');
      ++digits;
    } else {
      break;
    }
  }
  if (digits == 0 || at >= text.size() || text[at] != ']') return {};
  ++at;
  if (text.substr(at).starts_with("<stderr>") || text.substr(at).starts_with("<stdout>")) at += 8;
  if (at < text.size() && text[at] == ':') ++at;
  return {at, number};
}

Prefix prefix_of(std::string_view text) {
  if (text.starts_with("[")) return bracketed(text);
  std::size_t digits = 0;
  std::int64_t number = 0;
  while (digits < text.size() && digits < 6 && is_digit(text[digits]))
    number = 10 * number + (text[digits++] - '0');
  if (digits == 0 || digits == text.size() || text[digits] != ':') return {};
  // "17:06:52" is a time.
  if (digits + 1 < text.size() && is_digit(text[digits + 1])) return {};
  return {digits + 1, number};
}

// "2024-06-2617:06:52,697" within the first words of a line, with a blank in it again.
std::string time_in(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-dddd:dd:dd";
  for (std::size_t at = 0; at + kForm.size() <= text.size() && at < 60; ++at) {
    std::string_view here = text.substr(at);
    std::string day;
    std::size_t i = 0, from = 0;
    for (; i < kForm.size() && from < here.size(); ++i, ++from) {
      if (i == 10 && here[from] == 'T') ++from;
      if (from == here.size() || (kForm[i] == 'd' ? !is_digit(here[from]) : here[from] != kForm[i]))
        break;
      if (i == 10) day += ' ';
      day += here[from];
    }
    if (i < kForm.size()) continue;
    std::size_t end = from;
    if (end < here.size() && (here[end] == ',' || here[end] == '.'))
      for (++end; end < here.size() && end < from + 10 && is_digit(here[end]);) ++end;
    return day + std::string(here.substr(from, end - from));
  }
  return "";
}

void add_once(std::optional<std::int64_t> number, std::vector<std::int64_t>& numbers) {
  if (number && numbers.size() < kMostRanks && std::ranges::find(numbers, *number) == numbers.end())
    numbers.push_back(*number);
}

}  // namespace

void OomScanner::feed(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (escape_ == Escape::none && held_ == 0) {
      const std::size_t begin = at;
      while (at < bytes.size() && !kSpecial[static_cast<unsigned char>(bytes[at])]) ++at;
      text_ += bytes.substr(begin, at - begin);
      if (at == bytes.size()) break;
    }
    take_special(bytes[at++]);
    if (text_.size() >= kWindow) scan(false);
  }
  if (text_.size() >= kWindow) scan(false);
}

void OomScanner::finish() {
  if (held_ != 0) text_ += std::exchange(held_, '\0');
  scan(true);
  // Those without a time may have been first.
  if (all_timed_ && earliest_) log_.first = std::move(earliest_);
}

void OomScanner::take_special(char c) {
  if (escape_ != Escape::none) return follow_escape(c);
  if (held_ != 0) {
    const char held = std::exchange(held_, '\0');
    // "\n" that was written as two characters, as in JSON; a blank that does not break (U+00A0).
    if (held == '\\' ? c == 'n' || c == 'r' || c == 't' : c == '\xA0') return;
    text_ += held;
    if (!kSpecial[static_cast<unsigned char>(c)]) {
      text_ += c;
      return;
    }
  }
  if (c == '\x1b') {
    escape_ = Escape::begun;
  } else if (c == '\n') {
    ++line_;
    const std::int64_t offset = dropped_ + static_cast<std::int64_t>(text_.size());
    if (lines_.back().offset == offset)
      lines_.back().number = line_;
    else
      lines_.push_back({offset, line_});
  } else if (c == '\\' || c == '\xC2') {
    held_ = c;
  }
}

void OomScanner::follow_escape(char c) {
  switch (escape_) {
    case Escape::begun:
      escape_ = c == '[' ? Escape::sequence : c == ']' ? Escape::string : Escape::none;
      return;
    case Escape::sequence:
      if (c >= '\x40' && c <= '\x7e') escape_ = Escape::none;
      if (c == '\n') {  // no terminal's: binary junk
        escape_ = Escape::none;
        take_special(c);
      }
      return;
    case Escape::string:
      if (c == '\x1b') escape_ = Escape::string_end;
      if (c == '\a') escape_ = Escape::none;
      if (c == '\n') {
        escape_ = Escape::none;
        take_special(c);
      }
      return;
    case Escape::string_end:
    case Escape::none:
      escape_ = Escape::none;
      return;
  }
}

void OomScanner::scan(bool final) {
  const std::size_t end = final ? text_.size() : text_.size() - kBehind;
  std::array<std::size_t, std::size(kOomWords)> next{};
  const auto find = [&](std::size_t i, std::size_t from) {
    next[i] = text_.find(kOomWords[i], from);
  };
  for (std::size_t i = 0; i < next.size(); ++i) find(i, at_);
  for (;;) {
    const auto least = static_cast<std::size_t>(std::ranges::min_element(next) - next.begin());
    const std::size_t word = next[least];
    if (word == std::string::npos || word >= end) break;
    look_at(word);
    find(least, word + kOomWords[least].size());
  }
  for (std::size_t at = text_.find(kFlushes, at_); at < end;
       at = text_.find(kFlushes, at + kFlushes.size()))
    ++log_.flushes;
  at_ = end;
  if (!final && end > kContext) forget(end - kContext);
}

void OomScanner::look_at(std::size_t word) {
  if (!may_be_oom_message(text_, word)) return;
  const std::size_t begin = word > kContext ? word - kContext : 0;
  const std::string text = text_.substr(begin, word - begin) + without_prefixes(word);
  std::optional<OomMessage> message = read_oom_message(text, word - begin);
  if (!message) return;
  if (message->kind == OomKind::driver) {
    const std::int64_t offset = dropped_ + static_cast<std::int64_t>(word);
    const bool again = last_driver_ >= 0 && offset - last_driver_ < kOneMessage;
    last_driver_ = offset;
    if (again && !text_.substr(word).starts_with("outofmemory")) return;
  }
  place(word, *message);
  note(std::move(*message));
}

std::string OomScanner::without_prefixes(std::size_t word) const {
  std::string_view behind = std::string_view(text_).substr(word, kBehind);
  // What follows the next message is not this one's.
  constexpr std::string_view kNext = "outofmemory.Tried";
  if (const std::size_t next = behind.find(kNext, 1); next != std::string_view::npos)
    behind = behind.substr(0, next + kNext.size());
  std::string out;
  std::size_t from = 0;
  const std::int64_t offset = dropped_ + static_cast<std::int64_t>(word);
  auto line = std::ranges::upper_bound(lines_, offset, {}, &Line::offset);
  for (; line != lines_.end(); ++line) {
    const auto at = static_cast<std::size_t>(line->offset - offset);
    if (at >= behind.size()) break;
    if (at < from) continue;
    out += behind.substr(from, at - from);
    from = at;
    while (from < behind.size() && behind[from] == '>') ++from;  // of a mail
    from += prefix_of(behind.substr(from, 40)).length;
  }
  return out + std::string(behind.substr(from));
}

const OomScanner::Line& OomScanner::line_of(std::size_t at) const {
  const std::int64_t offset = dropped_ + static_cast<std::int64_t>(at);
  const auto after = std::ranges::upper_bound(lines_, offset, {}, &Line::offset);
  return after == lines_.begin() ? *after : *(after - 1);
}

void OomScanner::place(std::size_t word, OomMessage& message) const {
  const Line& line = line_of(word);
  message.line = line.number;
  if (line.offset < dropped_) return;
  const std::string_view text =
      std::string_view(text_).substr(static_cast<std::size_t>(line.offset - dropped_));
  const Prefix prefix = prefix_of(text.substr(0, 40));
  message.rank = prefix.rank;
  message.time = time_in(text.substr(prefix.length, 100));
}

void OomScanner::note(OomMessage message) {
  ++log_.messages;
  group(message);
  if (message.time.empty())
    all_timed_ = false;
  else if (!earliest_ || message.time < earliest_->time)
    earliest_ = message;
  if (!log_.first) log_.first = std::move(message);
}

void OomScanner::group(const OomMessage& message) {
  const auto same = std::ranges::find_if(log_.groups, [&](const OomGroup& g) {
    return g.kind == message.kind && g.library == message.library && g.tried == message.tried;
  });
  if (same == log_.groups.end() && log_.groups.size() == kMostGroups) {
    ++log_.ungrouped;
    return;
  }
  OomGroup& group = same != log_.groups.end()
                        ? *same
                        : log_.groups.emplace_back(
                              OomGroup{message.kind, message.library, message.tried, 0, {}, {}});
  ++group.times;
  add_once(message.rank, group.ranks);
  add_once(message.gpu, group.gpus);
}

void OomScanner::forget(std::size_t until) {
  text_.erase(0, until);
  dropped_ += static_cast<std::int64_t>(until);
  at_ -= until;
  const auto first = std::ranges::upper_bound(lines_, dropped_, {}, &Line::offset);
  if (first != lines_.begin()) lines_.erase(lines_.begin(), first - 1);
}

}  // namespace plimsoll::reports
