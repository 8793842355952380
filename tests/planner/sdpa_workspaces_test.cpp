// What SDPA's kernels ask the allocator for, by compute capability, as PyTorch 2.11 asks
// (tests/golden/attention_scratch.json, tools/oracle/attention_scratch.py).
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "planner/stacks/pytorch/sdpa_workspaces.h"

using namespace plimsoll;
using nlohmann::json;
using planner::pytorch::Processors;
using planner::pytorch::SdpaShape;

namespace {

// [backend, capability, dtype, sequences, heads, key heads, length, head size, mask, dropout,
// bytes that stay, more at the forward's peak, more at the backward's], or one error for the last
// three.
struct Row {
  explicit Row(const json& row)
      : backend(row[0].get<std::string>()),
        refused(row.size() == 11),
        mask(row[8].get<std::string>()) {
    models::Gpu gpu;
    gpu.vendor = "nvidia";
    gpu.compute_capability = row[1].get<std::string>();
    card = planner::pytorch::processors_of(gpu);
    shape = {.sequences = row[3].get<std::int64_t>(),
             .length = row[6].get<std::int64_t>(),
             .keys = row[6].get<std::int64_t>(),
             .heads = row[4].get<std::int64_t>(),
             .head_dim = row[7].get<std::int64_t>(),
             .groups = row[4] != row[5],
             .dropout = row[9].get<double>() > 0,
             .half = row[2] != "fp32"};
    if (refused) return;
    held = row[10].get<std::int64_t>();
    forward = row[11].get<std::int64_t>();
    backward = row[12].get<std::int64_t>();
  }
  std::string backend;
  bool refused = false;
  std::string mask;
  Processors card;
  SdpaShape shape;
  std::int64_t held = 0, forward = 0, backward = 0;
};

std::vector<json> rows() {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/attention_scratch.json"));
  return document["rows"];
}

std::int64_t up_to(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

TEST_CASE("cuDNN's attention asks for what its own plans need, on every card") {
  int answered = 0, refused = 0;
  for (const json& row : rows()) {
    const Row asked(row);
    if (asked.backend != "cudnn") continue;
    CAPTURE(row.dump());
    const SdpaShape& s = asked.shape;
    CHECK(cudnn_has(s.head_dim, s.keys, asked.card) == !asked.refused);
    refused += asked.refused ? 1 : 0;
    if (asked.refused) continue;
    ++answered;
    // The result in 16 bits, a logsumexp of each row, seed and offset.
    const std::int64_t queries = s.sequences * s.heads * s.length;
    CHECK(queries * (2 * s.head_dim + 4) + 16 == asked.held);
    CHECK(Bytes(cudnn_forward(s, asked.card)) == Bytes(asked.forward));
    CHECK(Bytes(cudnn_backward(s, asked.card)) == Bytes(asked.backward));
  }
  CHECK(answered > 150);
  CHECK(refused > 20);
}

TEST_CASE("the memory-efficient kernel asks for its sums, on every card") {
  int answered = 0;
  for (const json& row : rows()) {
    const Row asked(row);
    const SdpaShape& s = asked.shape;
    if (asked.backend != "efficient") continue;
    CAPTURE(row.dump());
    const bool takes = !s.groups && (asked.card.major >= 8 || row[2] != "bf16");
    CHECK(takes == !asked.refused);
    if (asked.refused) continue;
    ++answered;
    // Rows of the logsumexp are padded to 32, those of a mask, which is kept then, to 8.
    const std::int64_t sequences = s.sequences, heads = sequences * s.heads, length = s.length;
    const std::int64_t element = s.half ? 2 : 4, queries = heads * length;
    const bool pads = asked.mask == "masked" && length % 8 != 0;
    const std::int64_t mask = pads ? element * sequences * length * up_to(length, 8) : 0;
    CHECK(queries * element * s.head_dim + heads * up_to(length, 32) * 4 + mask == asked.held);
    if (mask == 0) CHECK(Bytes(efficient_forward(s)) == Bytes(asked.forward));
    // Row sums of dO·O beside these; in fp32 a product as large as q, its sums and their copy.
    const std::int64_t sums = 4 * queries;
    const std::int64_t blocks = Bytes(efficient_backward(s, asked.card)).value() + sums;
    const std::int64_t product = 4 * queries * s.head_dim + 2 * sums;
    CHECK((s.half ? blocks : std::max(blocks, product)) == asked.backward);
  }
  CHECK(answered > 200);
}

// What the rows cannot show: which of two equal sizes it is.
TEST_CASE("which heads cuDNN takes") {
  const Processors hopper{.major = 9}, ampere{.major = 8}, turing{.major = 7, .minor = 5};
  CHECK(cudnn_has(256, 2, hopper));
  CHECK_FALSE(cudnn_has(264, 2, hopper));
  CHECK_FALSE(cudnn_has(128, 1, hopper));
  CHECK_FALSE(cudnn_has(100, 2, hopper));
  CHECK(cudnn_has(128, 2, ampere));
  CHECK_FALSE(cudnn_has(136, 2, ampere));
  CHECK_FALSE(cudnn_has(64, 2, turing));
}

// dQ and the row sums in fp32; of 128 tokens or less with the engine of other cards, whose own dQ
// and 128 bytes stand beside them, however many keys there are.
TEST_CASE("Blackwell's engine takes sequences of more than 128 tokens, of queries and of keys") {
  const Processors blackwell{.major = 10};
  const auto scratch = [&](std::int64_t length, std::int64_t keys) {
    return planner::pytorch::cudnn_backward(
               {.sequences = 3, .length = length, .keys = keys, .heads = 2, .head_dim = 64},
               blackwell)
        .value();
  };
  const auto graph = [](std::int64_t length) { return 3 * 2 * length * 4 * (64 + 1); };
  CHECK(scratch(129, 129) == graph(129));
  CHECK(scratch(128, 129) == graph(128) + 3 * 2 * 128 * 4 * 64 + 128);
  CHECK(scratch(129, 128) == graph(129) + 3 * 2 * 136 * 4 * 64 + 128);
  CHECK(scratch(128, 128) == graph(128) + 3 * 2 * 128 * 4 * 64 + 128);
}

// CUDA C++ Programming Guide, technical specifications per compute capability: resident threads of
// a multiprocessor.
TEST_CASE("threads of a multiprocessor, of every NVIDIA card") {
  const auto threads = [](const char* capability) {
    models::Gpu gpu;
    gpu.vendor = "nvidia";
    gpu.compute_capability = capability;
    return planner::pytorch::processors_of(gpu).threads;
  };
  for (const char* capability : {"6.0", "7.0", "8.0", "9.0", "10.0", "10.3"})
    CHECK(threads(capability) == 2048);
  CHECK(threads("7.5") == 1024);
  for (const char* capability : {"8.6", "8.7", "8.9", "12.0", "12.1"})
    CHECK(threads(capability) == 1536);
}
