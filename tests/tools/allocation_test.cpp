// Every allocation of a question and its answer made to fail once (a sample of them, evenly spread;
// PLIMSOLL_CASES=1000000 tries all): it ends as a lack of memory, nothing is kept, and the next
// question has the same answer.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <new>

#include "models/base/error.h"
#include "reports/json_writer.h"
#include "reports/plan_json.h"
#include "reports/plan_table.h"
#include "tests/failing_new.h"
#include "tools/cli/plan_source.h"
#include "tools/cli/query_json.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {

// The planner and what is written of its answer. What is read before is left out: where the JSON
// library (3.11) lets a document go it allocates, in a destructor, and cannot say that it failed.
std::string answer_to(const Request& request) {
  const reports::Plan plan = answer(request);
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, plan, {.version = "1", .commit = "1"});
  return text + reports::plan_table(plan, {});
}

// A question leaves its times for the next one in a table of so many
// (planner/time/compute_time.cpp).
constexpr std::int64_t kTimes = 1 << 11;

void fail_each(const std::function<std::string()>& act) {
  const std::string whole = act();  // fills what is kept for the whole process
  const std::int64_t before = tests::allocations();
  CHECK(act() == whole);
  const std::int64_t all = tests::allocations() - before;
  const char* given = std::getenv("PLIMSOLL_CASES");
  const std::int64_t cases = given != nullptr ? std::atoll(given) : 150;
  const std::int64_t step = std::max<std::int64_t>(1, all / cases);
  std::int64_t failed = 0, stays = 0;
  for (std::int64_t at = 0; at < all; at += step) {
    const std::int64_t live = tests::live_allocations();
    bool told = false;
    tests::fail_allocation(at);
    try {
      (void)act();
    } catch (const std::bad_alloc&) {
      told = true;
    } catch (const Error&) {  // who cannot read for want of memory says that he cannot read
      told = true;
    }
    tests::fail_allocation(-1);
    failed += told;
    const std::int64_t kept = tests::live_allocations() - live;  // before doctest keeps anything
    stays += kept;
    CAPTURE(at);
    CHECK(kept <= 2);
  }
  CHECK(failed > 0);
  CHECK(stays <= kTimes);
  CHECK(act() == whole);
  MESSAGE(failed, " of ", all, " allocations made to fail");
}

}  // namespace

TEST_CASE("a question whose answer finds no memory ends so, and leaves nothing behind") {
  for (const char* line :
       {R"({"model": "gpt2", "gpu": "h100", "seq_len": 64, "micro_batch": 2})",
        R"({"model": "llama-3.2-1b", "gpu": "h100", "gpus": 16, "zero": 3, "shard_group": 8})",
        R"({"model": "gpt2", "gpu": "a100-80gb", "gpus": 3, "zero": 2, "stack": "deepspeed"})",
        R"({"model": "gpt2", "gpu": "h100", "gpus": 2, "zero": 3, "stack": "plimsoll"})",
        R"({"model": "qwen3-0.6b", "gpu": "h100", "lora_rank": 4, "quantize": "nf4"})"}) {
    CAPTURE(line);
    std::string id;
    Sources sources;
    const Query query = query_from(line, id);
    const Request request = request_from(query.model, query.options, sources);
    fail_each([&] { return answer_to(request); });
  }
}
