#include "planner/program/messages.h"

#include <algorithm>
#include <array>
#include <utility>

namespace plimsoll::planner {

namespace {

const char* name_of(Message::Kind kind) {
  constexpr std::array<const char*, 5> names{"all_gather", "reduce_scatter", "all_reduce",
                                             "broadcast", "reduce"};
  return names[static_cast<std::size_t>(kind)];
}

bool alike(const Message& a, const Message& b) {
  return a.kind == b.kind && a.array == b.array && a.of_token == b.of_token && a.group == b.group &&
         a.part == b.part && a.layer == b.layer && a.when == b.when && a.micros == b.micros &&
         a.beside == b.beside && a.copied == b.copied;
}

}  // namespace

void add(Messages& messages, const Message& message) {
  const bool sends = message.group.ranks > 1 && message.array > Bytes(0);
  if (message.count <= 0 || (!sends && message.copied <= 0)) return;
  if (!messages.empty() && alike(messages.back(), message))
    messages.back().count += message.count;
  else
    messages.push_back(message);
}

Messages of_batch(Messages messages, std::int64_t tokens) {
  for (Message& m : messages)
    if (std::exchange(m.of_token, false)) m.array = m.array * tokens;
  return messages;
}

std::vector<reports::Collective> collectives_of(const Messages& messages, std::int64_t grad_accum) {
  std::vector<reports::Collective> out;
  for (const Message& m : messages) {
    if (m.group.ranks <= 1 || m.array <= Bytes(0)) continue;
    const bool each = m.when != Message::When::step && m.micros == Message::Micros::each;
    const std::int64_t count = checked_multiply(m.count, each ? grad_accum : 1);
    const std::string kind = name_of(m.kind);
    const auto line = std::ranges::find_if(out, [&](const reports::Collective& c) {
      return c.kind == kind && c.array == m.array && c.group == m.group.ranks;
    });
    if (line != out.end())
      line->count += count;
    else
      out.push_back({kind, count, m.array, m.group.ranks});
  }
  return out;
}

// An all-reduce sends the array twice, less one part; the others once.
Bytes bytes_sent(const std::vector<reports::Collective>& collectives) {
  Bytes sent;
  for (const reports::Collective& c : collectives) {
    const std::int64_t parts = c.kind == "all_reduce" ? 2 * (c.group - 1) : c.group - 1;
    sent += Bytes(checked_multiply(ceil_divide(c.array.value(), c.group), parts)) * c.count;
  }
  return sent;
}

}  // namespace plimsoll::planner
