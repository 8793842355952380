// Where a message's seconds go in a micro-batch and a step, what it copies, and what is added up of
// them for a plan.
#include "planner/time/message_times.h"

#include <doctest/doctest.h>

#include <string>

#include "models/gpu_catalog.h"
#include "tests/near.h"

using namespace plimsoll;
using planner::Message;
using planner::Messages;
using planner::MessageTimes;
using Beside = Message::Beside;
using Kind = Message::Kind;
using Micros = Message::Micros;
using Part = Message::Part;
using When = Message::When;

namespace {

constexpr std::int64_t kNode = 8;
constexpr double kMemory = 2e12;
const std::vector<double> kCopies{4, 8};  // of two kinds of layers

planner::Fabric h100() {
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("h100-sxm-80gb");
  return planner::fabric_of(cluster);
}

Message gather(Part part) {
  return {.kind = Kind::all_gather,
          .array = 1_GiB,
          .count = part == Part::layer ? 12 : 1,
          .group = {.ranks = 8},
          .part = part,
          .layer = Message::kAnyLayer};
}

MessageTimes times(const Message& message) {
  return planner::times_of({message}, kCopies, h100(), kNode, kMemory);
}

double one_gather() {
  return planner::all_gather_seconds(h100(), {8, 8}, 1073741824);
}

}  // namespace

TEST_CASE("messages of any layer are shared out among all, those of one kind among its copies") {
  Message m = gather(Part::layer);
  m.beside = Beside::neighbour;
  const MessageTimes any = times(m);
  for (const planner::MicroBatchMessages* of : {&any.each, &any.once}) {
    REQUIRE(of->layers.size() == 2);
    for (const planner::LayerMessages& layer : of->layers) {
      CHECK(tests::near(layer.forward.beside, one_gather(), 1e-12));
      CHECK(layer.forward.alone == 0);
      CHECK(layer.backward.beside == 0);
    }
    CHECK(of->alone + of->tail + of->late == 0);
  }
  m.layer = 1;
  m.count = 16;  // two for each of eight
  const MessageTimes second = times(m);
  CHECK(second.each.layers[0].forward.beside == 0);
  CHECK(tests::near(second.each.layers[1].forward.beside, 2 * one_gather(), 1e-12));
}

TEST_CASE("a layer's message belongs to its pass, beside the neighbour's or alone") {
  Message m = gather(Part::layer);
  m.beside = Beside::nothing;
  m.when = When::backward;
  CHECK(tests::near(times(m).once.layers[0].backward.alone, one_gather(), 1e-12));
  CHECK(times(m).once.layers[0].backward.beside == 0);
  m.beside = Beside::backward;
  CHECK(tests::near(times(m).once.layers[0].backward.beside, one_gather(), 1e-12));
  m.when = When::reduction;
  CHECK(tests::near(times(m).once.layers[1].reduction.beside, one_gather(), 1e-12));
  CHECK(times(m).once.layers[1].backward.beside == 0);
}

TEST_CASE("what only the first or the last micro-batch sends is sent once a step") {
  Message m = gather(Part::layer);
  for (const Micros micros : {Micros::first, Micros::last}) {
    m.micros = micros;
    CHECK(times(m).each.layers[0].forward.alone == 0);
    CHECK(tests::near(times(m).once.layers[0].forward.alone, one_gather(), 1e-12));
  }
}

TEST_CASE("messages of the ends run beside the last layer, late in the backward, or alone") {
  for (const Part part : {Part::front, Part::tail}) {
    Message m = gather(part);
    m.count = 3;
    CHECK(tests::near(times(m).each.alone, 3 * one_gather(), 1e-12));
    CHECK(times(m).each.tail + times(m).each.late == 0);
    m.beside = Beside::neighbour;
    CHECK(tests::near(times(m).each.tail, 3 * one_gather(), 1e-12));
    m.beside = Beside::backward;
    CHECK(tests::near(times(m).each.late, 3 * one_gather(), 1e-12));
  }
}

TEST_CASE("what follows the optimizer's step is in no micro-batch") {
  Message m = gather(Part::layer);
  m.kind = Kind::broadcast;
  m.when = When::step;
  const MessageTimes of = times(m);
  CHECK(tests::near(of.step, 12 * planner::broadcast_seconds(h100(), {8, 8}, 1073741824), 1e-12));
  CHECK(of.once.layers[0].forward.alone + of.once.alone == 0);
  CHECK_FALSE(of.crosses_nodes);
  m.group.ranks = 16;
  CHECK(times(m).crosses_nodes);
}

TEST_CASE("each kind of message takes its collective's time") {
  Message m = gather(Part::front);
  m.kind = Kind::reduce_scatter;
  CHECK(tests::near(times(m).each.alone, one_gather(), 1e-12));
  m.kind = Kind::all_reduce;
  CHECK(tests::near(times(m).each.alone, planner::all_reduce_seconds(h100(), {8, 8}, 1073741824),
                    1e-12));
}

TEST_CASE("copies into a message move the GPU's memory in the pass that they belong to") {
  Message m = gather(Part::layer);
  m.copied = 4e9;  // 2 ms
  CHECK(tests::near(times(m).each.layers[0].forward.copies.memory, 2e-3, 1e-12));
  m.part = Part::tail;
  CHECK(tests::near(times(m).each.copies.memory, 12 * 2e-3, 1e-12));
  CHECK(times(m).each.layers[0].forward.copies.memory == 0);
}

TEST_CASE("equal messages are one line, and nothing is none") {
  Messages all;
  Message m = gather(Part::layer);
  planner::add(all, m);
  planner::add(all, m);
  CHECK(all.size() == 1);
  CHECK(all[0].count == 24);
  m.when = When::backward;
  planner::add(all, m);
  CHECK(all.size() == 2);
  m.count = 0;
  planner::add(all, m);
  m.count = 1;
  m.array = 0_B;
  planner::add(all, m);
  m.array = 1_GiB;
  m.group.ranks = 1;
  planner::add(all, m);
  CHECK(all.size() == 2);
  m.copied = 1;  // alone, and it copies all the same
  planner::add(all, m);
  CHECK(all.size() == 3);
}

// An all-reduce sends twice 7 eighths of the array, a gather 7 eighths, rounded up to whole parts.
TEST_CASE("a plan's collectives are its messages' sum over the micro-batches") {
  Messages all{gather(Part::layer), gather(Part::layer)};
  all[1].when = When::backward;
  all[1].micros = Micros::last;
  all.push_back(gather(Part::front));
  all[2].kind = Kind::all_reduce;
  all[2].array = Bytes(1001);
  all.push_back(gather(Part::front));
  all[3].when = When::step;
  all.push_back(gather(Part::front));
  all[4].group.ranks = 1;
  const auto lines = planner::collectives_of(all, 5);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].kind == "all_gather");
  CHECK(lines[0].count == 12 * 5 + 12 + 1);
  CHECK(lines[1].kind == "all_reduce");
  CHECK(lines[1].count == 5);
  CHECK(planner::bytes_sent(lines) == Bytes(73 * (1'073'741'824LL / 8) * 7 + 5 * 126 * 14));
}

// 12 of them in 12 layers of two kinds: one a layer, and each asks the host.
TEST_CASE("each message asks the host where its copies stand") {
  Message m = gather(Part::layer);
  const MessageTimes layers = planner::times_of({m}, kCopies, h100(), kNode, kMemory, 0.5e-3);
  for (const planner::LayerMessages& layer : layers.each.layers) {
    CHECK(tests::near(layer.forward.copies.launches, 0.5e-3, 1e-12));
    CHECK(tests::near(layer.forward.count, 1, 1e-12));
    CHECK(layer.backward.count == 0);
    CHECK(layer.backward.copies.launches == 0);
  }
  CHECK(layers.each.copies.launches == 0);
  m = gather(Part::tail);
  const MessageTimes ends = planner::times_of({m}, kCopies, h100(), kNode, kMemory, 0.5e-3);
  CHECK(tests::near(ends.each.copies.launches, 0.5e-3, 1e-12));
}
