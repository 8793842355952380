// Kernels, losses and checkpoints that the search may choose from, as literal lists.
#include <doctest/doctest.h>

#include "tests/search/asked.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using models::Stack;
using tests::Asked;
using tests::Words;

TEST_CASE("Liger's kernels are one switch, and bring their loss") {
  Asked asked;
  CHECK(asked.values("kernels") == Words{"eager", "liger"});
  CHECK(asked.options("kernels") == Words{"", "--kernels liger"});
  CHECK(asked.concessions("kernels") == std::vector{0, 0});
  const Setting plain = asked.so_far, liger = asked.choices("kernels").back();
  CHECK(effort(liger).knobs == effort(plain).knobs + 1);
  CHECK_FALSE(effort(liger).code);
  asked.so_far = liger;
  CHECK(asked.values("loss") == Words{"fused"});
  CHECK(asked.options("loss") == Words{""});
  // Who asks for a loss, or for kernels, is offered no others.
  Asked full;
  full.scope.fixed.insert("loss");
  CHECK(full.values("kernels") == Words{"eager"});
  full.strategy().loss = models::Loss::fused;
  CHECK(full.values("kernels") == Words{"eager", "liger"});
  Asked given;
  given.scope.fixed.insert("kernels");
  given.strategy().kernels = models::Kernels::liger;
  CHECK(given.values("kernels") == Words{"liger"});
  CHECK(given.values("loss") == Words{"full", "chunked", "fused"});
  CHECK(given.options("loss") == Words{"--loss full", "--loss chunked", ""});
  // Our own runtime has its own kernels, and other programs' models their own modules.
  Asked own;
  own.strategy().stack = Stack::plimsoll;
  CHECK(own.values("kernels") == Words{"eager"});
  Asked tune;
  tune.strategy().code = models::ModelCode::torchtune_0_6_1;
  CHECK(tune.values("kernels") == Words{"eager"});
}

TEST_CASE("checkpoints around 1, 2 … layers, fewer than the root of them") {
  Asked asked;  // 16 layers: 4 · 4 is no less
  const Words all = {"none", "selective", "full", "every:2", "every:3", "sqrt"};
  CHECK(asked.values("recompute") == all);
  CHECK(asked.options("recompute") == Words{"", "--recompute selective", "--recompute full",
                                            "--recompute every:2", "--recompute every:3",
                                            "--recompute sqrt"});
  asked.model.decoder->layers = 17;
  CHECK(asked.values("recompute") ==
        Words{"none", "selective", "full", "every:2", "every:3", "every:4", "sqrt"});
  asked.model.decoder->layers = 4;
  CHECK(asked.values("recompute") == Words{"none", "selective", "full", "sqrt"});
  // A checkpoint around attention alone needs Transformers 4.53, or our own runtime.
  asked.strategy().transformers = {4, 52, 0};
  CHECK(asked.values("recompute") == Words{"none", "full", "sqrt"});
  asked.strategy().stack = Stack::plimsoll;
  CHECK(asked.values("recompute") == Words{"none", "selective", "full", "sqrt"});
}
