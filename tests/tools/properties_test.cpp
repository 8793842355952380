// Laws that hold for every question, over drawn ones. PLIMSOLL_CASES=10000 draws more,
// PLIMSOLL_SEED others.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <clocale>
#include <filesystem>
#include <fstream>
#include <locale>

#include "planner/plan.h"
#include "planner/search/search.h"
#include "reports/plan_json.h"
#include "tests/scratch_folder.h"
#include "tests/tools/drawn_question.h"
#include "tools/cli/plan_source.h"
#include "tools/cli/query_json.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using models::Strategy;
using plimsoll::test::ScratchFolder;
using tests::Given;
using tests::value_of;
using tests::with;

namespace {

unsigned number_from(const char* name, unsigned otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::stoul(text));
}

struct Asked {
  std::string model;
  Given given;
  Request request;
  reports::Plan plan;
};

Sources& sources() {
  static Sources known;
  return known;
}

Options options_of(const Given& given) {
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  return options;
}

// Small enough for thousands of plans, odd enough that nothing divides evenly.
const std::vector<std::string>& small_models() {
  static const std::vector<std::string> paths = [] {
    static const ScratchFolder own;
    const std::filesystem::path& folder = own.path();
    const std::pair<const char*, const char*> configs[] = {
        {"gpt2", R"("n_embd":192,"n_head":3,"n_layer":3,"vocab_size":1009,"n_positions":2048)"},
        {"llama",
         R"("hidden_size":160,"num_attention_heads":5,"num_key_value_heads":1,"intermediate_size":424,
          "vocab_size":1511,"num_hidden_layers":4)"},
        {"qwen3",
         R"("hidden_size":128,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,
          "intermediate_size":328,"vocab_size":3001,"num_hidden_layers":2,"tie_word_embeddings":true)"},
        {"opt", R"("hidden_size":96,"num_attention_heads":3,"ffn_dim":384,"word_embed_proj_dim":96,
          "vocab_size":777,"num_hidden_layers":5,"max_position_embeddings":2048,"do_layer_norm_before":true)"},
        {"gpt_neox",
         R"("hidden_size":256,"num_attention_heads":8,"intermediate_size":1024,"vocab_size":50277,
          "num_hidden_layers":2,"max_position_embeddings":2048)"}};
    std::vector<std::string> out;
    for (const auto& [type, fields] : configs) {
      std::filesystem::create_directories(folder / type);
      out.push_back(folder / type / "config.json");
      std::ofstream(out.back()) << "{\"model_type\":\"" << type << "\"," << fields << "}";
    }
    return out;
  }();
  return paths;
}

// Nothing where the question is refused; a refusal is the user's fault, never ours.
std::optional<Asked> asked(const std::string& model, const Given& given) {
  try {
    Asked out{model, given, request_from(model, options_of(given), sources()), {}};
    out.request.question.remedies = false;
    out.request.question.detail = planner::Detail::none;
    out.plan = answer(out.request);
    return out;
  } catch (const Error& refused) {
    CHECK(refused.kind() != ErrorKind::internal);
    return std::nullopt;
  }
}

// Calls `law` with every drawn question that is answered; at least half are.
template <class Law>
void for_drawn(unsigned cases, Law law) {
  tests::QuestionDraw draw(number_from("PLIMSOLL_SEED", 11));
  const unsigned count = number_from("PLIMSOLL_CASES", cases);
  unsigned answers = 0;
  for (unsigned i = 0; i < count; ++i) {
    const std::string& model = small_models()[draw.below(small_models().size())];
    const Given given = draw.question();
    CAPTURE(model);
    CAPTURE(tests::text_of(given));
    if (const std::optional<Asked> question = asked(model, given)) {
      ++answers;
      law(*question);
    }
  }
  CHECK(answers >= count / 2);
}

std::string document(const reports::Plan& plan) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, plan, {.version = "1", .commit = "1"});
  return text;
}

void check_sums(const reports::Plan& plan) {
  CHECK(reports::sum(plan.at_peak) == plan.peak);
  CHECK(plan.resident <= plan.peak);
  CHECK(plan.peak <= plan.reserved);
  CHECK(plan.device == plan.reserved + plan.overhead.total());
  for (const Bytes part : plan.at_peak) CHECK(part >= Bytes(0));
  std::int64_t ranks = 0;
  for (const reports::RankKind& kind : plan.ranks) {
    ranks += kind.count;
    CHECK(reports::sum(kind.at_peak) == kind.peak);
    CHECK(kind.peak <= plan.peak);
    CHECK(kind.reserved <= plan.reserved);
  }
  CHECK(ranks == plan.strategy.gpus);
  // Where the card was measured and reserved bytes are exact there is a range, else a high end.
  REQUIRE(plan.high_end.has_value() != plan.range.has_value());
  if (plan.high_end) CHECK(plan.high_end->device() >= plan.device);
  if (plan.range) CHECK(plan.range->low <= plan.device);
  if (plan.range) CHECK(plan.range->high >= plan.device);
  REQUIRE(plan.usable);
  REQUIRE(plan.headroom);
  CHECK(*plan.headroom == *plan.usable - plan.device);
  CHECK(plan.fits == (plan.device <= *plan.usable));
}

// The states of the rank that holds most: the planned rank is that of the highest peak, which may
// hold less.
Bytes most_states(const reports::Plan& plan, bool gradients = true) {
  Bytes most;
  for (const reports::RankKind& kind : plan.ranks)
    most = std::max(
        most, gradients ? kind.states.total() : kind.states.parameters + kind.states.optimizer);
  return most;
}

// Of DeepSpeed's gradients a rank keeps those whole that its partition cuts (stage_1_and_2.py,
// grads_in_partition): with more ranks the cuts fall elsewhere, on larger ones too.
bool keeps_cut_gradients(const reports::Plan& plan) {
  return plan.strategy.stack == models::Stack::deepspeed && plan.strategy.data.zero < 3;
}

// What a change of one option does, where the changed question is answered too.
template <class Law>
void changed(const Asked& question, const std::string& name, const std::string& value, Law law) {
  CAPTURE(name);
  CAPTURE(value);
  if (const auto other = asked(question.model, with(question.given, name, value))) law(*other);
}

// A number whose decimal sign is a comma and whose thousands are parted, as in Germany.
class Foreign : public std::numpunct<char> {
 protected:
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

}  // namespace

TEST_CASE("parts sum to the whole, on every rank") {
  for_drawn(300, [](const Asked& question) { check_sums(question.plan); });
}

// Padding of our own buckets: every rank's part begins at a multiple of 256 bytes (the arena's
// alignment).
constexpr std::int64_t kPartAlignment = 256;

Bytes padding(const reports::Plan& plan, std::int64_t ranks) {
  return Bytes(plan.strategy.stack == models::Stack::plimsoll ? kPartAlignment * ranks : 0);
}

TEST_CASE("more ranks never hold more states each") {
  for_drawn(300, [](const Asked& question) {
    const std::int64_t ranks = 2 * question.plan.strategy.gpus;
    changed(question, "gpus", std::to_string(ranks), [&](const Asked& more) {
      const bool all = !keeps_cut_gradients(question.plan);
      CHECK(most_states(more.plan, all).value() <=
            (most_states(question.plan, all) + padding(question.plan, ranks)).value());
    });
  });
}

// Two steps of DeepSpeed do add states, by design: ZeRO's optimizer keeps fp32 masters of fp32
// weights too, and stage 3 keeps parameters below stage3_param_persistence_threshold (100,000
// elements: all of these models) whole beside their shards.
TEST_CASE("a further ZeRO stage never adds states") {
  for_drawn(300, [](const Asked& question) {
    const Strategy& s = question.plan.strategy;
    if (s.gpus == 1 || s.data.zero == 3) return;
    if (s.stack == models::Stack::deepspeed &&
        (s.data.zero == 2 || s.precision == models::Precision::fp32))
      return;
    changed(question, "zero", std::to_string(s.data.zero + 1), [&](const Asked& further) {
      CHECK(most_states(further.plan).value() <=
            (most_states(question.plan) + padding(question.plan, s.gpus)).value());
    });
  });
}

// What torch calls allocated counts whole blocks: the rest of a block of more than 1 MiB that is
// not split (below 1 MiB, CUDACachingAllocator.cpp, should_split) belongs to it. Which blocks there
// are depends on what came before, so that a smaller step may hold a little more. Our own arena
// counts what is asked for.
Bytes allowance(const reports::Plan& plan) {
  return plan.strategy.stack == models::Stack::plimsoll ? Bytes(0) : Bytes(plan.peak.value() / 20);
}

TEST_CASE(
    "less to do never needs more: tokens, micro-batches, optimizer states, kept activations, "
    "trained weights") {
  for_drawn(300, [](const Asked& question) {
    const auto saves = [&](const char* name, const char* value) {
      changed(question, name, value, [&](const Asked& less) {
        CHECK(less.plan.peak.value() <= (question.plan.peak + allowance(question.plan)).value());
      });
    };
    saves("micro-batch", "1");
    saves("seq-len", "128");
    saves("grad-accum", "1");
    saves("optimizer", "sgd");
    if (value_of(question.given, "recompute") == "none") saves("recompute", "full");
    // Over 64 ranks the few rows of these models' adapters do not divide: each tensor takes a row
    // on some rank.
    const Strategy& strategy = question.plan.strategy;
    const bool whole_beside_shards =
        strategy.stack == models::Stack::deepspeed && strategy.data.zero == 3;
    // SGD keeps nothing: what freezing saves is gradients, and an eighth of those is less than
    // adapters of so small a model take.
    const bool little_to_save =
        strategy.optimizer == models::Optimizer::sgd && strategy.data.zero >= 2;
    if (value_of(question.given, "lora-rank").empty() && !whole_beside_shards && !little_to_save &&
        strategy.gpus <= 8)
      changed(question, "lora-rank", "8", [&](const Asked& adapters) {
        CHECK(most_states(adapters.plan).value() <= most_states(question.plan).value());
      });
  });
}

TEST_CASE("a line of a batch and a question read back from its plan give the same document") {
  for_drawn(300, [](const Asked& question) {
    std::string line = "{\"model\":\"" + question.model + "\"";
    for (const auto& [name, value] : question.given) line += ",\"" + name + "\":\"" + value + "\"";
    std::string id;
    const Query query = query_from(line + "}", id);
    Request request = request_from(query.model, query.options, sources());
    request.question.remedies = false;
    request.question.detail = planner::Detail::none;
    const std::string fit = document(question.plan);
    CHECK(document(answer(request)) == fit);
    Request again = request_from_plan(fit, "plan.json");
    again.question.remedies = false;
    again.question.detail = planner::Detail::none;
    CHECK(document(answer(again)) == fit);

    planner::search::Scope scope;  // as `recommend` plans what it lists
    scope.base = question.request.question;
    const reports::Plan listed = planner::search::plan_of(
        scope, {.strategy = request.question.strategy, .batch = request.question.batch});
    CHECK(listed.peak == question.plan.peak);
    CHECK(listed.reserved == question.plan.reserved);
    CHECK(listed.device == question.plan.device);
    CHECK(listed.fits == question.plan.fits);
  });
}

TEST_CASE("neither locale nor time zone changes a byte") {
  for_drawn(300, [](const Asked& question) {
    const std::string here = document(question.plan);
    const std::locale before =
        std::locale::global(std::locale(std::locale::classic(), new Foreign));
    setlocale(LC_ALL, "de_DE.UTF-8");  // where the machine has it
    setenv("TZ", "Asia/Kathmandu", 1);
    tzset();
    const auto abroad = asked(question.model, question.given);
    const std::string there = abroad ? document(abroad->plan) : "";
    std::locale::global(before);
    setlocale(LC_ALL, "C");
    unsetenv("TZ");
    tzset();
    CHECK(there == here);
  });
}
