// What an out-of-memory error was, and what can be done about it: the answer of `plimsoll oom`, as
// the document `plimsoll.oom/1` (reports/schema/oom.schema.json) and as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/json_writer.h"
#include "reports/oom/reading.h"
#include "reports/plan_json.h"
#include "reports/record.h"
#include "reports/text.h"

namespace plimsoll::reports {

// A request of the planned step that may have been the one that failed.
struct OomCandidate {
  TensorLine tensor;  // bytes as it is asked for, `repeat`: requests in a start and two steps
  TimelinePoint at;  // and what is allocated right before it; phase "": while the model is loaded
  Bytes printed;  // after the allocator's rounding
  bool first_step = false;  // or before it
  std::optional<Bytes> difference;  // of the allocated bytes, planned less printed
  bool agrees = false;  // within the error of plans
};

// Logits of a batch that is not the one that was stated.
struct LogitsGuess {
  std::int64_t bytes_per_logit = 0, fewest_tokens = 0, most_tokens = 0;
};
// Tokens for which logits would be asked for with the message's size.
std::vector<LogitsGuess> logits_guesses(const OomMessage& message, std::int64_t vocabulary);

// The planned workload beside the message.
struct OomMatch {
  Plan plan;
  bool searched = false;  // the message has a size that can be looked for
  std::vector<OomCandidate> candidates;  // best first
  std::int64_t further = 0;
  std::optional<Bytes> room;  // what PyTorch could reserve, by the message
  std::optional<OomCandidate> refused;  // the plan's first request without room there
  ByCategory lived{};  // beside the best candidate, by the plan
  std::vector<TensorLine> largest;  // of that: bytes of `repeat` tensors together
  std::vector<LogitsGuess> guesses;  // where there is no candidate
};

struct OomAnswer {
  OomLog log;  // with at least one message
  OomReading reading;  // of the first
  std::optional<OomMatch> match;  // where the workload was named
};

void write_oom(JsonWriter& json, const OomAnswer& answer, const Tool& tool);

// Lines of at most terminal.columns, each with its line feed.
std::string oom_table(const OomAnswer& answer, const Terminal& terminal);

}  // namespace plimsoll::reports
