// A step put together from sections of others has the peak of its own program.
#include <doctest/doctest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "models/model_catalog.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "planner/search/evaluator.h"
#include "planner/search/section_cache.h"
#include "tests/search/scope_of.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using models::Section;
using models::Strategy;

namespace {

Strategy with(models::Loss loss, models::RecomputeKind recompute) {
  Strategy s;
  s.loss = loss;
  s.recompute = {recompute, 1};
  return s;
}

// Layers up to the loss, the loss, layers again, the optimizer.
std::array<SectionPeak, 4> step(Bytes loss_begins, Bytes loss_rises) {
  return {SectionPeak{Section::layers, 0_B, loss_begins + 7_B, 3_B},
          SectionPeak{Section::loss, loss_begins, loss_rises, 5_B},
          SectionPeak{Section::layers, loss_begins, 20_B, 4_B},
          SectionPeak{Section::optimizer, 30_B, 60_B, 2_B}};
}

Peak peak_of(Bytes high, Bytes scratch) {
  Peak peak;
  peak.bytes = 1000_B + high;
  peak.resident = 1000_B;
  peak.scratch = scratch;
  peak.states = 900_B;
  return peak;
}

}  // namespace

TEST_CASE("sections of two steps make a third one") {
  const Strategy a = with(models::Loss::full, models::RecomputeKind::full),
                 b = with(models::Loss::fused, models::RecomputeKind::full),
                 c = with(models::Loss::full, models::RecomputeKind::sqrt),
                 d = with(models::Loss::fused, models::RecomputeKind::sqrt);
  const models::Batch batch;
  SectionCache sections;
  // a: layers 107 and 120, the loss 100 + 300, the optimizer 90.
  sections.add(sections.ids_of(a, false), batch, peak_of(400_B, 5_B), step(100_B, 300_B));
  CHECK(sections.find(sections.ids_of(a, false), batch)->bytes == 1400_B);
  CHECK_FALSE(sections.find(sections.ids_of(b, false), batch));
  CHECK_FALSE(sections.find(sections.ids_of(c, false), batch));
  // b: the same layers with another loss, 100 + 40.
  sections.add(sections.ids_of(b, false), batch, peak_of(140_B, 5_B), step(100_B, 40_B));
  // c: other layers with a's loss, 50 + 300.
  sections.add(sections.ids_of(c, false), batch, peak_of(350_B, 5_B), step(50_B, 300_B));
  // d: c's layers 57 and 70, b's loss 50 + 40; the optimizer's 30 + 60 is as high.
  const auto found = sections.find(sections.ids_of(d, false), batch);
  REQUIRE(found);
  CHECK(found->bytes == 1090_B);
  CHECK(found->resident == 1000_B);
  CHECK(found->states == 900_B);
  CHECK(found->scratch == 5_B);
  CHECK_FALSE(sections.contradicted());
  models::Batch other = batch;
  other.micro_batch = 2;
  CHECK_FALSE(sections.find(sections.ids_of(d, false), other));
}

TEST_CASE("what stays beside the states is the layers', the states are the optimizer's") {
  Strategy math = with(models::Loss::full, models::RecomputeKind::none);
  math.attention = models::Attention::math;
  Strategy fused = with(models::Loss::full, models::RecomputeKind::none);
  fused.optimizer_impl = models::OptimizerImpl::fused;
  const models::Batch batch;
  SectionCache sections;
  Peak of_math = peak_of(400_B, 5_B), of_fused = peak_of(400_B, 5_B);
  of_math.resident += 64_B;  // a workspace that stays
  of_math.bytes += 64_B;
  of_fused.resident += 8_B;  // a step's number for each parameter
  of_fused.states += 8_B;
  of_fused.bytes += 8_B;
  sections.add(sections.ids_of(math, false), batch, of_math, step(100_B, 300_B));
  sections.add(sections.ids_of(fused, false), batch, of_fused, step(100_B, 300_B));
  math.optimizer_impl = fused.optimizer_impl;
  const auto both = sections.find(sections.ids_of(math, false), batch);
  REQUIRE(both);
  CHECK(both->resident == 1072_B);
  CHECK(both->states == 908_B);
  CHECK(both->bytes == 1472_B);
  CHECK_FALSE(sections.contradicted());
}

TEST_CASE("what is not equal although it should be is noticed, and nothing is found any more") {
  const models::Batch batch;
  for (const bool loss_differs : {false, true}) {
    SectionCache sections;
    const Strategy a = with(models::Loss::full, models::RecomputeKind::full),
                   b = with(models::Loss::fused, models::RecomputeKind::full),
                   c = with(models::Loss::full, models::RecomputeKind::sqrt);
    sections.add(sections.ids_of(a, false), batch, peak_of(400_B, 5_B), step(100_B, 300_B));
    if (loss_differs)  // other layers, but a's loss rises by one byte less
      sections.add(sections.ids_of(c, false), batch, peak_of(349_B, 5_B), step(50_B, 299_B));
    else  // another loss, but a's layers begin it one byte later
      sections.add(sections.ids_of(b, false), batch, peak_of(141_B, 5_B), step(101_B, 40_B));
    CHECK(sections.contradicted());
    CHECK_FALSE(sections.find(sections.ids_of(a, false), batch));
  }
}

// What it has room for: the loss of each distinct micro-batch, three, and one optimizer. A step
// with more is not one that it can put together, and is not known.
TEST_CASE("a step with two optimizers, or with a fourth loss, is not taken apart") {
  const Strategy a = with(models::Loss::full, models::RecomputeKind::full);
  const auto known = [&](int losses, int optimizers) -> std::optional<Bytes> {
    std::vector<SectionPeak> peaks{{Section::layers, 0_B, 50_B, 3_B}};
    for (int i = 0; i < losses; ++i)
      peaks.push_back({Section::loss, Bytes(100 + 10 * i), 300_B, 5_B});
    for (int i = 0; i < optimizers; ++i)
      peaks.push_back({Section::optimizer, Bytes(30 + i), 60_B, 2_B});
    SectionCache sections;
    const SectionCache::Ids ids = sections.ids_of(a, false);
    sections.add(ids, {}, peak_of(400_B, 5_B), peaks);
    CHECK_FALSE(sections.contradicted());
    const std::optional<Peak> found = sections.find(ids, {});
    CHECK((sections.missing(ids, {}) == SectionCache::Missing::nothing) == found.has_value());
    return found ? std::optional(found->bytes) : std::nullopt;
  };
  CHECK(known(1, 1) == 1400_B);  // 1000 that stay, 100 and 300
  CHECK(known(3, 1) == 1420_B);
  CHECK(known(0, 1) == 1090_B);  // the optimizer's 30 + 60
  CHECK(known(1, 0) == 1400_B);
  CHECK_FALSE(known(4, 1));
  CHECK_FALSE(known(1, 2));
  CHECK_FALSE(known(1, 3));
}

// Which sections two strategies share follows from what each section computes: implementations of
// the optimizer are the optimizer's alone, unless it steps inside the backward.
TEST_CASE("strategies share a section where nothing that they differ in is part of it") {
  using Ids = SectionCache::Ids;
  SectionCache sections;
  const auto shared = [&](Strategy base, auto change) {  // layers, loss, optimizer
    const Ids a = sections.ids_of(base, true);
    change(base);
    const Ids b = sections.ids_of(base, true);
    CHECK(a.strategy != b.strategy);
    std::string out;
    out += a.layers == b.layers ? 'L' : '-';
    out += a.loss == b.loss ? 'l' : '-';
    out += a.optimizer == b.optimizer ? 'o' : '-';
    return out;
  };
  const Strategy plain = with(models::Loss::full, models::RecomputeKind::none);
  const auto fused = [](Strategy& s) { s.optimizer_impl = models::OptimizerImpl::fused; };
  const auto math = [](Strategy& s) { s.attention = models::Attention::math; };
  const auto chunked = [](Strategy& s) { s.loss = models::Loss::chunked; };
  const auto recomputed = [](models::RecomputeKind kind) {
    return [kind](Strategy& s) { s.recompute.kind = kind; };
  };
  using models::RecomputeKind;
  CHECK(shared(plain, fused) == "Ll-");
  CHECK(shared(plain, math) == "-lo");
  CHECK(shared(plain, chunked) == "L-o");
  CHECK(shared(plain, recomputed(RecomputeKind::selective)) == "-lo");
  CHECK(shared(plain, recomputed(RecomputeKind::full)) == "--o");  // casts in the loss's middle
  const Strategy full = with(models::Loss::full, RecomputeKind::full);
  CHECK(shared(full, recomputed(RecomputeKind::sqrt)) == "-lo");
  Strategy inside = plain;
  inside.optimizer_in_backward = true;
  CHECK(shared(inside, fused) == "---");
  Strategy frozen = plain;
  frozen.freeze = {"*.0.*"};
  CHECK(shared(frozen, fused) == "Ll-");
  CHECK(shared(frozen, math) == "---");
  CHECK(shared(frozen, recomputed(RecomputeKind::selective)) == "---");
  CHECK(shared(frozen, chunked) == "L-o");
  Strategy adapters = plain;
  adapters.lora = models::Lora{};
  CHECK(shared(adapters, recomputed(RecomputeKind::selective)) == "--o");
  CHECK(shared(adapters, math) == "-lo");
}

// Autocast's cast makes a tensor of the head's gradient with any loss; elsewhere a fused one does.
TEST_CASE("without autocast a fused loss has layers of its own where the head is the embedding") {
  Strategy full = with(models::Loss::full, models::RecomputeKind::full),
           fused = with(models::Loss::fused, models::RecomputeKind::full),
           chunked = with(models::Loss::chunked, models::RecomputeKind::full);
  SectionCache sections;
  const auto layers = [&](const Strategy& s, bool tied) { return sections.ids_of(s, tied).layers; };
  CHECK(layers(full, true) == layers(fused, true));
  for (Strategy* s : {&full, &fused, &chunked}) s->precision = models::Precision::bf16;
  CHECK(layers(full, true) != layers(fused, true));
  CHECK(layers(full, true) == layers(chunked, true));
  CHECK(layers(full, false) == layers(fused, false));
}

namespace {

struct Counted {
  std::int64_t points = 0, put_together = 0;
};

// Every `step`-th batch of each family. A point is put together where its peak is there before its
// program is.
Counted check_space(const Scope& scope, std::size_t step) {
  const Space space(scope);
  KnownSteps known;
  SectionCache& sections = known.sections;
  Evaluator whole(scope, space), shared(scope, space, &known);
  const bool tied = scope.base.model->decoder->tied_head;
  Counted count;
  for (const Setting& family : families(scope)) {
    const std::vector<models::Batch> sizes = batches(scope, family);
    for (std::size_t i = 0; i < sizes.size(); i += step) {
      const models::Batch& batch = sizes[i];
      if (i > 0 && batch.tokens() > space.most_tokens(family)) continue;
      CAPTURE(options_of(family));
      CAPTURE(batch.micro_batch);
      CAPTURE(batch.grad_accum);
      ++count.points;
      count.put_together += sections.find(sections.ids_of(family.strategy, tied), batch) ? 1 : 0;
      const std::optional<Need> a = whole.need(family, batch), b = shared.need(family, batch);
      REQUIRE(a.has_value() == b.has_value());
      if (!a) {
        REQUIRE(whole.refusal() == shared.refusal());
        continue;
      }
      REQUIRE(a->peak == b->peak);
      REQUIRE(a->scratch == b->scratch);
      REQUIRE(a->states == b->states);
      REQUIRE(a->counted() == b->counted());
    }
  }
  CHECK_FALSE(sections.contradicted());
  return count;
}

Scope scope_of(const models::ModelSpec& model, const char* gpu, std::int64_t gpus,
               std::int64_t seq_len) {
  Scope scope = tests::scope_of(model, gpu, gpus, seq_len);
  if (gpus > 2) scope.most_concession = kMostWithoutPacking;  // the larger spaces without the rest
  return scope;
}

}  // namespace

TEST_CASE("every point of a space has the peak of its own program") {
  struct Case {
    const char *model, *gpu;
    std::int64_t gpus, seq_len;
    std::size_t step;
  };
  for (const Case& c :
       {Case{"llama-3.1-8b", "a100-80gb", 8, 1000, 41}, Case{"gpt2-xl", "rtx-4090", 4, 777, 29},
        Case{"llama-3.1-70b", "h100-sxm-80gb", 8, 8192, 17}, Case{"qwen3-0.6b", "t4", 2, 512, 17},
        Case{"mistral-7b", "h100-sxm-80gb", 8, 8192, 23},
        Case{"llama-3.2-1b", "rtx-4090", 1, 512, 7}}) {
    const models::ModelSpec model = models::catalog_model(c.model);
    CAPTURE(std::string(c.model));
    const Counted count = check_space(scope_of(model, c.gpu, c.gpus, c.seq_len), c.step);
    MESSAGE(std::string(c.model) << ": " << count.put_together << " of " << count.points);
    CHECK(count.points > 1000);
    // Liger's kernels come with one loss: no other strategy has their layers.
    CHECK(5 * count.put_together > 2 * count.points);
  }
}

TEST_CASE("so has one with micro-batches that are accumulated, adapters, frozen parts") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  Scope scope = scope_of(model, "rtx-4090", 2, 1024);
  SUBCASE("accumulated") {
    scope.global_batch = 2 * 12;
  }
  SUBCASE("adapters") {
    scope.base.strategy.lora = models::Lora{.rank = 8, .dropout = 0.1, .targets = {"q_proj"}};
    scope.fixed.insert("adapters");
  }
  SUBCASE("only the last layer") {
    scope.base.strategy.freeze = {"*"};
    scope.base.strategy.train = {"model.layers.15.*"};
  }
  SUBCASE("only the final norm") {
    scope.base.strategy.freeze = {"*"};
    scope.base.strategy.train = {"model.norm.weight"};
  }
  SUBCASE("all but the embedding and some layers") {
    scope.base.strategy.freeze = {"model.embed_tokens.*", "model.layers.[0-7].*"};
  }
  SUBCASE("adapters beside a trained norm") {
    scope.base.strategy.lora = models::Lora{.rank = 8, .targets = {"q_proj", "down_proj"}};
    scope.base.strategy.freeze = {"*"};
    scope.base.strategy.train = {"model.norm.*"};
    scope.fixed.insert("adapters");
  }
  SUBCASE("an older release, views of buckets") {
    scope.base.strategy.transformers = models::Release{4, 45};
    scope.base.strategy.data.gradient_as_bucket_view = true;
  }
  SUBCASE("all stages reduce alike") {
    scope.base.strategy.deterministic = true;
  }
  CHECK(check_space(scope, 9).points > 100);
}
