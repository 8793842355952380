// The answer about a message and the plan of its run, as a table: every line of it, and what each
// line becomes where the plan or the message says less.
#include <doctest/doctest.h>

#include "reports/oom/answer.h"
#include "reports/oom/scanner.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
OomCandidate candidate(const char* name, Bytes bytes, std::optional<Bytes> difference,
                       bool agrees) {
  return {.tensor = {.name = name, .category = "activations", .bytes = bytes, .repeat = 7},
          .at = {.op = "layers.1.mlp.up", .phase = "forward", .allocated = 15_GiB},
          .printed = 238_MiB,
          .first_step = false,
          .difference = difference,
          .agrees = agrees};
}

// 16 GiB in use of a card of 24, asked for 238 MiB; the plan has a peak of 40 GiB and does not fit.
OomAnswer made_up() {
  OomScanner scanner;
  scanner.feed(
      "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 238.00 MiB. GPU 1 "
      "has a total capacity of 24.00 GiB of which 100.00 MiB is free. Including non-PyTorch "
      "memory, this process has 16.00 GiB memory in use. Of the allocated memory 14.00 GiB is "
      "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n");
  scanner.finish();
  OomAnswer answer{.log = scanner.log()};
  answer.reading = read_cause(*answer.log.first);
  answer.reading.ways = {{.change = "this", .why = "because", .frees = 1_GiB, .enough = true},
                         {.change = "that", .why = "of it", .frees = 2_GiB, .enough = false},
                         {.change = "other", .why = "so", .frees = {}, .enough = false}};
  answer.reading.doubts = {"a doubt"};
  answer.match = OomMatch{.plan = made_up_plan(), .searched = true};
  OomMatch& match = *answer.match;
  match.plan.fits = false;
  match.plan.device = 80_GiB;
  match.plan.usable = 78_GiB;
  match.candidates = {candidate("layers.*.mlp.up", 237_MiB, -2_GiB, true),
                      candidate("lm_head.out", 236_MiB, 1_GiB, false),
                      candidate("w", 238_MiB, {}, false)};
  match.candidates[1].first_step = true;
  match.candidates[2].at.op.clear();
  match.further = 4;
  match.room = 15_GiB;
  match.refused = match.candidates[0];
  match.lived = {1_GiB, 0_B, 3_GiB, 4_GiB};
  match.largest = {{.name = "layers.*.p", .category = "parameters", .bytes = 9_GiB, .repeat = 11},
                   {.name = "one", .category = "optimizer", .bytes = 5_MiB, .repeat = 1}};
  return answer;
}
std::string table(const OomAnswer& answer) {
  return oom_table(answer, {});
}
// Wherever lines were broken.
std::string flat(const OomAnswer& answer) {
  std::string out;
  for (const char c : table(answer))
    if (c != '\n' && c != ' ')
      out += c;
    else if (!out.ends_with(' '))
      out += ' ';
  return out;
}
bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("an answer about a message and the plan of its run, from the first line to the last") {
  CHECK(table(made_up()) == R"--(OUT OF MEMORY: no room for 238 MiB on GPU 1 of rank 2 (line 1)
Fragmentation: PyTorch had 1.00 GiB in its cache, more than the 238 MiB that
  were asked for, but in no piece that large.
Doubtful: a doubt.

What the message says
  asked for           238 MiB  after the allocator's rounding
  free                100 MiB  by the driver
  allocated          14.0 GiB  to tensors, by PyTorch
  cache              1.00 GiB  reserved by PyTorch, and not allocated
  this process       16.0 GiB  PyTorch and all else
    beside PyTorch   1.00 GiB  context, NCCL, libraries
  elsewhere          7.90 GiB  processes that are not listed, the driver
  card               24.0 GiB  as CUDA counts it

Which request failed, best match first
  1. layers.*.mlp.up (activations), 237 MiB asked as 238 MiB: forward
     layers.1.mlp.up
     by the plan 15.0 GiB are allocated then, by the message 17.0 GiB (-11.8 %,
     agrees)
  2. lm_head.out (activations), 236 MiB asked as 238 MiB: forward
     layers.1.mlp.up, first step
     by the plan 15.0 GiB are allocated then, by the message 14.0 GiB (+7.1 %)
  3. w (activations), 238 MiB asked as 238 MiB: while the model is loaded
     by the plan 15.0 GiB are allocated then
  and 4 more of that size
In the 15.0 GiB that PyTorch could reserve, the planned step is refused at the
  first of these, layers.*.mlp.up (237 MiB), forward layers.1.mlp.up.

What lived then, by the plan
  parameters         1.00 GiB
  optimizer          3.00 GiB
  activations        4.00 GiB
The largest of it:
    9.00 GiB  layers.*.p (parameters), 11 of them
    5.00 MiB  one (optimizer)

Try first
  1. this: because (1.00 GiB at most, enough for this request)
  2. that: of it (2.00 GiB at most)
  3. other: so
  For this request only: by the plan the step needs 2.00 GiB more than there is,
  sooner or later.

As planned, tiny-llama needs 80.0 GiB on the card, 40.0 GiB of it tensors at the
  peak (backward, layers.31.mlp); 78.0 GiB usable.
No change that is known makes it fit.
)--");
}

TEST_CASE("what each part of the answer says where less is known") {
  OomAnswer a = made_up();
  // The plan has no room to hold it against, or it fits: nothing is said of a later need.
  const char* const later = "For this request only: by the plan the step needs 2.00 GiB more";
  CHECK(has(table(a), later));
  a.match->plan.usable.reset();
  CHECK_FALSE(has(table(a), "For this request only"));
  CHECK_FALSE(has(table(a), " usable."));
  a.match->plan.usable = 80_GiB;
  CHECK_FALSE(has(table(a), "For this request only"));
  a = made_up();
  a.match->plan.fits = true;
  CHECK_FALSE(has(table(a), "For this request only"));
  CHECK(has(table(a), "\nSo it fits: nothing in these options needs to change for this step.\n"));
  a = made_up();
  a.reading.ways[0].enough = false;
  CHECK_FALSE(has(table(a), "For this request only"));
  a.reading.ways.clear();
  CHECK_FALSE(has(table(a), "Try first"));
  a.match.reset();
  CHECK(has(table(a), "Try first\n  1. name the model and its options behind the log"));
  // Candidates, none of which agrees, without allocated bytes of the message, or none at all.
  a = made_up();
  a.match->candidates[0].agrees = false;
  CHECK(has(table(a), "\nRequests of that size; at none of them the plan has as much allocated:"));
  a.log.first->allocated.reset();
  CHECK(has(table(a), "\nWhich request failed, best match first\n"));
  a = made_up();
  a.match->candidates.clear();
  a.match->guesses = {{2, 1000, 1010}};
  CHECK(has(flat(a),
            "No candidate: no request of this plan would be printed as 238 MiB The run was not as "
            "these options say, or what failed is not part of a training step: loading or saving a "
            "checkpoint, evaluation, another model. If it was logits of 2 bytes, there were 1000 "
            "to 1010 tokens in the batch (these options: 16384). "));  // 2 of 8192
  CHECK(has(flat(a), "is refused at layers.*.mlp.up (237 MiB), forward"));
  a = made_up();
  CHECK(has(flat(a), "is refused at the first of these, layers.*.mlp.up (237 MiB)"));
  a.match->refused->tensor.bytes = 236_MiB;
  CHECK(has(flat(a), "is refused at layers.*.mlp.up (236 MiB)"));
  a.match->refused->tensor = a.match->candidates[1].tensor;
  CHECK(has(flat(a), "is refused at lm_head.out (236 MiB)"));
  a.match->refused.reset();
  CHECK(has(table(a), "In the 15.0 GiB that PyTorch could reserve, the planned step gets through"));
  a.match->room.reset();
  CHECK_FALSE(has(table(a), "could reserve"));
  a.match->further = 0;
  CHECK_FALSE(has(table(a), "more of that size"));
  a.match->largest.clear();
  CHECK_FALSE(has(table(a), "What lived then"));
  a.match->searched = false;
  CHECK_FALSE(has(table(a), "Which request failed"));
  a.match->plan.remedies = {{.option = "--recompute full", .saves = 3_GiB, .device = 40_GiB}};
  CHECK(has(table(a), "--recompute full  saves 3.00 GiB"));
  CHECK_FALSE(has(table(a), "No change that is known"));
}

TEST_CASE("a log's messages are counted by what was asked for, with eight ranks at most") {
  OomAnswer a = made_up();
  a.match.reset();
  a.log.flushes = 1;
  CHECK(has(table(a), "DeepSpeed warned 1 time before that"));
  a.log.flushes = 2;
  CHECK(has(table(a), "DeepSpeed warned 2 times before that"));
  CHECK_FALSE(has(table(a), "messages of the log"));
  a.log.messages = 12;
  a.log.groups.resize(1);
  OomGroup& group = a.log.groups[0];
  group.times = 12;
  group.ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  group.gpus = {3};
  CHECK(
      has(table(a),
          "\nAll 12 messages of the log\n  12 x 238 MiB (ranks 0, 1, 2, 3, 4, 5, 6, 7) (GPU 3)\n"));
  group.ranks.push_back(8);
  group.gpus.clear();
  CHECK(has(table(a), "  12 x 238 MiB (ranks 0, 1, 2, 3, 4, 5, 6, 7, …)\n"));
  a.log.flushes = 0;
  CHECK_FALSE(has(table(a), "DeepSpeed"));
}

// A request of S bytes is printed with a margin, and rounded up to 2 MiB by the allocator alone: V
// logits of b bytes for a token are S / (V b) tokens.
TEST_CASE("tokens that would make logits of the size that was asked for") {
  OomMessage message;
  message.kind = OomKind::allocator;
  message.tried = PrintedSize{.bytes = 64_MiB, .margin = 1_MiB};
  const auto said = [&](std::int64_t vocabulary) {
    std::string out;
    for (const LogitsGuess& g : logits_guesses(message, vocabulary))
      out += std::to_string(g.bytes_per_logit) + ": " + std::to_string(g.fewest_tokens) + "-" +
             std::to_string(g.most_tokens) + " ";
    return out;
  };
  // 1024 · 4 bytes: 61 MiB + 1 B to 65 MiB.
  CHECK(said(1024) == "4: 15617-16640 2: 31233-33280 ");
  message.kind = OomKind::async_allocator;
  CHECK(said(1024) == "4: 16128-16640 2: 32256-33280 ");
  CHECK(said(0) == "");
  CHECK(said(32 << 20) == "2: 1-1 ");  // 128 MiB a token are more than 65
  message.tried->bytes = 20_MiB;
  CHECK(said(1024) == "");
  message.tried.reset();
  CHECK(said(1024) == "");
}
