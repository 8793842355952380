#include <fmt/format.h>

#include <algorithm>

#include "reports/oom/answer.h"
#include "reports/plan_table.h"

namespace plimsoll::reports {

namespace {
constexpr std::size_t kNameColumns = 16, kBytesColumns = 10;

class Table {
 public:
  explicit Table(const Terminal& terminal) : terminal_(terminal) {}

  void line(std::string_view text, std::string_view indent = "  ", Colour colour = Colour::none) {
    for (const std::string& part : wrapped(printable(text), terminal_.columns, indent))
      put(coloured(clipped(part, terminal_.columns, terminal_), colour, terminal_));
  }
  void heading(std::string_view text) {
    text_ += '\n';
    line(text);
  }
  void row(std::string_view name, Bytes bytes, std::string_view rest) {
    std::string text =
        "  " + padded(name, kNameColumns) + " " + right(bytes_text(bytes), kBytesColumns);
    if (!rest.empty()) text += "  " + std::string(rest);
    line(text, std::string(kNameColumns + kBytesColumns + 5, ' '));
  }
  void row(std::string_view name, const std::optional<Bytes>& bytes, std::string_view rest) {
    if (bytes) row(name, *bytes, rest);
  }
  void row(std::string_view name, const std::optional<PrintedSize>& size, std::string_view rest) {
    if (size) row(name, size->bytes, rest);
  }
  void append(std::string_view lines) { text_ += lines; }
  std::string take() { return std::move(text_); }

 private:
  void put(std::string_view line) {
    text_ += line;
    text_ += '\n';
  }
  const Terminal& terminal_;
  std::string text_;
};

std::string numbers(const char* one, const char* many, const std::vector<std::int64_t>& all) {
  if (all.empty()) return "";
  std::string text = fmt::format(" ({} ", all.size() == 1 ? one : many);
  for (std::size_t i = 0; i < all.size() && i < 8; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", all[i]);
  return text + (all.size() > 8 ? ", …)" : ")");
}

std::string what_of(OomKind kind, const std::string& library,
                    const std::optional<PrintedSize>& tried) {
  const std::string size = tried ? bytes_text(tried->bytes) : "an unknown size";
  switch (kind) {
    case OomKind::allocator:
    case OomKind::async_allocator:
      return size;
    case OomKind::overflow:
      return "more than 2^60 bytes";
    case OomKind::driver:
      return "something of the driver's";
    case OomKind::nccl:
      return tried ? size + " of NCCL" : "buffers of NCCL";
    case OomKind::library:
      return "memory of a library (" + library + ")";
    case OomKind::host:
      return tried ? size + " of the host's memory" : "memory of the host";
  }
  return "";
}

void add_verdict(Table& table, const OomAnswer& answer) {
  const OomMessage& m = *answer.log.first;
  std::string where;
  if (m.gpu) where += fmt::format(" on GPU {}", *m.gpu);
  if (m.rank) where += fmt::format(" of rank {}", *m.rank);
  std::string when = fmt::format(" (line {}", m.line);
  if (!m.time.empty()) when += ", " + m.time;
  table.line(
      "OUT OF MEMORY: no room for " + what_of(m.kind, m.library, m.tried) + where + when + ")",
      "  ", Colour::red);
  table.line(answer.reading.why);
  for (const std::string& doubt : answer.reading.doubts) table.line("Doubtful: " + doubt + ".");
}

void add_accounts(Table& table, const OomAnswer& answer) {
  const OomMessage& m = *answer.log.first;
  const OomReading& r = answer.reading;
  if (!m.tried && !m.capacity) return;
  table.heading("What the message says");
  table.row("asked for", m.tried,
            m.kind == OomKind::allocator ? "after the allocator's rounding" : "");
  table.row("free", m.free, "by the driver");
  table.row("allocated", m.allocated, "to tensors, by PyTorch");
  table.row("  private pools", m.private_pools, "of that, for CUDA graphs and other pools");
  table.row("cache", r.unallocated, "reserved by PyTorch, and not allocated");
  table.row("this process", r.in_use,
            r.in_use_inferred ? "PyTorch and all else (told by its size)" : "PyTorch and all else");
  table.row("  beside PyTorch", r.own_outside, "context, NCCL, libraries");
  if (r.others > 0_B) table.row("other processes", r.others, "as they are listed");
  table.row("elsewhere", r.elsewhere,
            r.in_use ? "processes that are not listed, the driver"
                     : "contexts, NCCL, libraries, other processes");
  table.row("allowed", m.allowed, "by set_per_process_memory_fraction()");
  table.row("card", m.capacity, "as CUDA counts it");
}

void add_log(Table& table, const OomLog& log) {
  if (log.flushes > 0)
    table.line(
        fmt::format("DeepSpeed warned {} time{} before that the cache was given back to the "
                    "driver to have room.",
                    log.flushes, log.flushes == 1 ? "" : "s"));
  if (log.messages < 2) return;
  table.heading(fmt::format("All {} messages of the log", log.messages));
  for (const OomGroup& group : log.groups)
    table.line(
        fmt::format("  {} x {}{}{}", group.times, what_of(group.kind, group.library, group.tried),
                    numbers("rank", "ranks", group.ranks), numbers("GPU", "GPUs", group.gpus)),
        "    ");
  if (log.ungrouped > 0) table.line(fmt::format("  {} of other sizes", log.ungrouped));
}

// Room for one request is not room for the step.
void add_later_need(Table& table, const OomAnswer& answer) {
  const bool any = std::ranges::any_of(answer.reading.ways, &OomWay::enough);
  if (!any || !answer.match || !answer.match->plan.usable || answer.match->plan.fits) return;
  const Bytes beyond = answer.match->plan.device - *answer.match->plan.usable;
  if (beyond > 0_B)
    table.line(
        fmt::format("  For this request only: by the plan the step needs {} more than there "
                    "is, sooner or later.",
                    bytes_text(beyond)));
}

void add_ways(Table& table, const OomAnswer& answer) {
  const std::vector<OomWay>& ways = answer.reading.ways;
  if (ways.empty() && answer.match) return;
  table.heading("Try first");
  int number = 0;
  for (const OomWay& way : ways) {
    std::string text = fmt::format("  {}. {}: {}", ++number, way.change, way.why);
    if (way.frees)
      text += fmt::format(" ({} at most{})", bytes_text(*way.frees),
                          way.enough ? ", enough for this request" : "");
    table.line(text, "     ");
  }
  add_later_need(table, answer);
  if (!answer.match)
    table.line(fmt::format("  {}. name the model and its options behind the log, as for plimsoll "
                           "fit: which tensor failed, and which change avoids it",
                           ++number),
               "     ");
}

std::string place_of(const OomCandidate& c) {
  if (c.at.op.empty()) return "while the model is loaded";
  return fmt::format("{} {}{}", c.at.phase, c.at.op, c.first_step ? ", first step" : "");
}

std::string allocated_of(const OomCandidate& c) {
  std::string text = fmt::format("by the plan {} are allocated then", bytes_text(c.at.allocated));
  if (!c.difference) return text;
  const Bytes said = c.at.allocated - *c.difference;
  text += fmt::format(", by the message {}", bytes_text(said));
  if (said > 0_B)
    text += fmt::format(" ({:+.1f} %{})", 100 * c.difference->real() / said.real(),
                        c.agrees ? ", agrees" : "");
  return text;
}

void add_no_candidate(Table& table, const OomMessage& message, const OomMatch& match) {
  table.heading(fmt::format("No candidate: no request of this plan would be printed as {}",
                            bytes_text(message.tried->bytes)));
  table.line(
      "The run was not as these options say, or what failed is not part of a training "
      "step: loading or saving a checkpoint, evaluation, another model.");
  for (const LogitsGuess& guess : match.guesses)
    table.line(
        fmt::format("If it was logits of {} bytes, there were {} to {} tokens in the batch "
                    "(these options: {}).",
                    guess.bytes_per_logit, guess.fewest_tokens, guess.most_tokens,
                    match.plan.batch.micro_batch * match.plan.batch.seq_len));
}

void add_candidates(Table& table, const OomMessage& message, const OomMatch& match) {
  if (match.candidates.empty()) return add_no_candidate(table, message, match);
  const bool any = std::ranges::any_of(match.candidates, &OomCandidate::agrees);
  table.heading(any || !message.allocated
                    ? "Which request failed, best match first"
                    : "Requests of that size; at none of them the plan has as much allocated: "
                      "the run was not as these options say, or failed outside the step");
  int number = 0;
  for (const OomCandidate& c : match.candidates) {
    table.line(
        fmt::format("  {}. {} ({}), {} asked as {}: {}", ++number, c.tensor.name, c.tensor.category,
                    bytes_text(c.tensor.bytes), bytes_text(c.printed), place_of(c)),
        "     ");
    table.line("     " + allocated_of(c), "     ");
  }
  if (match.further > 0) table.line(fmt::format("  and {} more of that size", match.further));
}

void add_refused(Table& table, const OomMatch& match) {
  if (!match.room) return;
  const std::string room = bytes_text(*match.room);
  if (!match.refused)
    return table.line(
        fmt::format("In the {} that PyTorch could reserve, the planned step gets through: the run "
                    "held something that these options do not say.",
                    room));
  const OomCandidate& refused = *match.refused;
  const bool same = !match.candidates.empty() &&
                    match.candidates.front().tensor.name == refused.tensor.name &&
                    match.candidates.front().tensor.bytes == refused.tensor.bytes;
  table.line(
      fmt::format("In the {} that PyTorch could reserve, the planned step is refused {}{} "
                  "({}), {}.",
                  room, same ? "at the first of these, " : "at ", refused.tensor.name,
                  bytes_text(refused.tensor.bytes), place_of(refused)));
}

void add_lived(Table& table, const OomMatch& match) {
  if (match.largest.empty()) return;
  table.heading("What lived then, by the plan");
  for (std::size_t i = 0; i < match.lived.size(); ++i)
    if (match.lived[i] > 0_B)
      table.row(models::name_of(static_cast<models::Category>(i)), match.lived[i], "");
  table.line("The largest of it:");
  for (const TensorLine& tensor : match.largest)
    table.line(fmt::format("  {}  {} ({}){}", right(bytes_text(tensor.bytes), kBytesColumns),
                           tensor.name, tensor.category,
                           tensor.repeat > 1 ? fmt::format(", {} of them", tensor.repeat) : ""),
               "              ");
}

void add_plan(Table& table, const OomMatch& match, const Terminal& terminal) {
  const Plan& plan = match.plan;
  std::string text = fmt::format(
      "As planned, {} needs {} on the card, {} of it tensors at the peak ({}, {})", plan.model_name,
      bytes_text(plan.device), bytes_text(plan.peak), plan.peak_place.phase, plan.peak_place.where);
  if (plan.usable) text += fmt::format("; {} usable", bytes_text(*plan.usable));
  table.heading(text + ".");
  if (!plan.remedies.empty())
    table.append(remedies_table(plan.remedies, terminal));
  else if (plan.fits)
    table.line("So it fits: nothing in these options needs to change for this step.");
  else
    table.line("No change that is known makes it fit.");
}
}  // namespace

// In segments of 2 MiB where it is rounded; below 10 MiB a size is a class.
std::vector<LogitsGuess> logits_guesses(const OomMessage& message, std::int64_t vocabulary) {
  std::vector<LogitsGuess> guesses;
  if (vocabulary <= 0 || !message.tried || message.tried->bytes <= 20_MiB) return guesses;
  const PrintedSize& tried = *message.tried;
  const Bytes rounding = message.kind == OomKind::allocator ? 2_MiB - 1_B : 0_B;
  for (const std::int64_t bytes : {4, 2}) {
    const std::int64_t row = checked_multiply(vocabulary, bytes);
    const LogitsGuess guess{bytes,
                            ceil_divide((tried.bytes - tried.margin - rounding).value(), row),
                            (tried.bytes + tried.margin).value() / row};
    if (guess.fewest_tokens > 0 && guess.fewest_tokens <= guess.most_tokens)
      guesses.push_back(guess);
  }
  return guesses;
}

std::string oom_table(const OomAnswer& answer, const Terminal& terminal) {
  Table table(terminal);
  add_verdict(table, answer);
  add_accounts(table, answer);
  add_log(table, answer.log);
  if (answer.match && answer.match->searched) {
    add_candidates(table, *answer.log.first, *answer.match);
    add_refused(table, *answer.match);
    add_lived(table, *answer.match);
  }
  add_ways(table, answer);
  if (answer.match) add_plan(table, *answer.match, terminal);
  return table.take();
}

}  // namespace plimsoll::reports
