#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/attention_kernels.h"
#include "models/base/error.h"
#include "runtime/io/batches.h"
#include "tests/scratch_folder.h"

using namespace plimsoll;
using kernels::kIgnoreIndex;
using plimsoll::test::packed;
using plimsoll::test::ScratchFolder;
using runtime::io::Batches;
using runtime::io::BatchShape;
using runtime::io::TokenSource;

namespace {
using Ids = std::vector<std::int32_t>;

Ids read(const TokenSource& source, std::int64_t first, std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  source.read(first, ids);
  return ids;
}

struct Pair {
  Ids ids, targets;
};
Pair batch(const Batches& batches, const BatchShape& shape, std::int64_t step,
           std::int64_t micro_batch, std::int64_t rank) {
  const auto n = static_cast<std::size_t>(shape.sequences * shape.length);
  Pair out{Ids(n, -7), Ids(n, -7)};
  batches.fill(step, micro_batch, rank, out.ids, out.targets);
  return out;
}

void check_refused(const std::function<void()>& act, ErrorKind kind, const std::string& part) {
  try {
    act();
  } catch (const Error& error) {
    CHECK_MESSAGE(error.kind() == kind, error.message());
    CHECK_MESSAGE(error.message().find(part) != std::string::npos, error.message());
    return;
  }
  FAIL("no error: " << part);
}

// Bytes 'a', 'b', 'c', …
std::unique_ptr<TokenSource> letters(const ScratchFolder& folder, std::size_t count) {
  std::string text(count, 'a');
  std::iota(text.begin(), text.end(), 'a');
  return runtime::io::text_tokens(folder.write("letters.txt", text), 256);
}

std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string header = packed<std::int32_t>({magic, version, count});
  header.resize(1024, '\0');
  return header;
}

Ids seen_in_step(const TokenSource& source, const BatchShape& shape, std::int64_t step) {
  const Batches batches(source, shape);
  std::map<std::int64_t, Ids> by_place;
  for (std::int64_t m = 0; m < shape.micro_batches; ++m)
    for (std::int64_t r = 0; r < shape.ranks; ++r)
      by_place[batches.first_sequence(m, r)] = batch(batches, shape, step, m, r).ids;
  Ids all;
  for (const auto& [place, ids] : by_place) {
    CHECK(place * shape.length == std::ssize(all));
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}
}  // namespace

TEST_CASE("a text is its bytes") {
  const ScratchFolder folder;
  const auto source =
      runtime::io::text_tokens(folder.write("x.txt", std::string("A\0\xff\n", 4)), 256);
  CHECK(source->tokens() == 4);
  CHECK(read(*source, 0, 4) == Ids{65, 0, 255, 10});
  CHECK(read(*source, 2, 1) == Ids{255});
  CHECK(read(*source, 4, 0).empty());
  check_refused([&] { read(*source, 3, 2); }, ErrorKind::internal, "beyond the end");
  check_refused([&] { read(*source, -1, 2); }, ErrorKind::internal, "beyond the end");
}

TEST_CASE("the shipped text is a play of Shakespeare's, in ASCII") {
  const auto source = runtime::io::shipped_tokens(256);
  CHECK(source->tokens() == 41472);
  const std::string_view text = runtime::io::shipped_text();
  CHECK(text.substr(0, 63) == "First Citizen:\nBefore we proceed any further, hear me speak.\n\nA");
  CHECK(text.ends_with("\nVOLUMNIA:\nTrue! pow, wow.\n"));
  CHECK(std::ranges::all_of(text, [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
  CHECK(read(*source, 15, 6) == Ids{'B', 'e', 'f', 'o', 'r', 'e'});
  // What is compiled in is the file.
  CHECK(plimsoll::test::bytes_of(PLIMSOLL_SHIPPED_TEXT) == text);
}

TEST_CASE("a small vocabulary takes no text") {
  const ScratchFolder folder;
  check_refused([&] { runtime::io::text_tokens(folder.write("x", "abc"), 255); },
                ErrorKind::bad_input, "at least 256 tokens; this model has 255");
  check_refused([] { runtime::io::shipped_tokens(100); }, ErrorKind::bad_input, "has 100");
}

TEST_CASE("too little to train on is refused") {
  const ScratchFolder folder;
  check_refused([&] { runtime::io::text_tokens(folder.write("x", ""), 256); }, ErrorKind::bad_input,
                "no token to train on");
  check_refused([&] { runtime::io::text_tokens(folder.write("x", "a"), 256); },
                ErrorKind::bad_input, "one token to train on");
  check_refused([&] { runtime::io::id_file_tokens(folder.write("x.bin", ""), 256); },
                ErrorKind::bad_input, "no token to train on");
  check_refused([&] { runtime::io::id_file_tokens(folder.write("x.bin", "ab"), 256); },
                ErrorKind::bad_input, "one token to train on");
  check_refused([&] { runtime::io::text_tokens(folder / "absent.txt", 256); }, ErrorKind::bad_input,
                "absent.txt: No such file");
  check_refused([&] { runtime::io::text_tokens(folder.path(), 256); }, ErrorKind::bad_input,
                "not a regular file");
}

TEST_CASE("nanoGPT's files are uint16 and nothing else") {
  const ScratchFolder folder;
  const auto source = runtime::io::id_file_tokens(
      folder.write("x.bin", packed<std::uint16_t>({15496, 11, 50256, 0})), 50257);
  CHECK(source->tokens() == 4);
  CHECK(read(*source, 0, 4) == Ids{15496, 11, 50256, 0});
  CHECK(read(*source, 2, 1) == Ids{50256});
  check_refused([&] { runtime::io::id_file_tokens(folder.write("y.bin", "abcde"), 50257); },
                ErrorKind::bad_input, "truncated: 5 bytes");
}

TEST_CASE("an id outside of the vocabulary is named with its place") {
  const ScratchFolder folder;
  const auto source = runtime::io::id_file_tokens(
      folder.write("x.bin", packed<std::uint16_t>({1, 2, 300, 4})), 300);
  CHECK(read(*source, 0, 2) == Ids{1, 2});
  check_refused([&] { read(*source, 1, 3); }, ErrorKind::bad_input,
                "token 2 is 300, the model's vocabulary has 300 (0 to 299)");
}

TEST_CASE("llm.c's files say how many tokens they have") {
  const ScratchFolder folder;
  const std::string gpt2 = llmc_header(20240520, 1, 3) + packed<std::uint16_t>({7, 50256, 9});
  const auto open = [&](const std::string& bytes) {
    return runtime::io::id_file_tokens(folder.write("x.bin", bytes), 128256);
  };
  CHECK(open(gpt2)->tokens() == 3);
  CHECK(read(*open(gpt2), 0, 3) == Ids{7, 50256, 9});
  const std::string llama = llmc_header(20240801, 7, 3) + packed<std::uint32_t>({7, 128255, 9});
  CHECK(open(llama)->tokens() == 3);
  CHECK(read(*open(llama), 1, 2) == Ids{128255, 9});
  const auto refused = [&](const std::string& bytes, ErrorKind kind, const std::string& part) {
    check_refused([&] { open(bytes); }, kind, part);
  };
  refused(gpt2.substr(0, gpt2.size() - 1), ErrorKind::bad_input,
          "truncated: its header says 3 tokens of 2 bytes, 5 bytes follow it");
  refused(gpt2.substr(0, 1023), ErrorKind::bad_input, "truncated");
  refused(gpt2.substr(0, 12), ErrorKind::bad_input, "truncated");
  refused(gpt2 + "x", ErrorKind::bad_input, "1 bytes more than the 3 tokens");
  refused(llmc_header(20240520, 1, -1), ErrorKind::bad_input, "says -1 tokens");
  refused(llmc_header(20240520, 1, 0), ErrorKind::bad_input, "no token to train on");
  refused(llmc_header(20240520, 2, 0), ErrorKind::unsupported, "version 2");
  refused(llmc_header(20240801, 1, 0), ErrorKind::unsupported, "version 1");
  refused(llmc_header(20240522, 1, 0), ErrorKind::unsupported, "evaluation file");
  // The largest uint32 is not -1.
  const auto large = open(llmc_header(20240801, 7, 2) + packed<std::uint32_t>({1, 0xffffffff}));
  check_refused([&] { read(*large, 0, 2); }, ErrorKind::bad_input, "token 1 is 4294967295");
}

TEST_CASE("long reads are the sum of short ones") {
  const ScratchFolder folder;
  std::string bytes;
  for (std::uint32_t i = 0; i < 20000; ++i)
    bytes += packed<std::uint16_t>({static_cast<std::uint16_t>(i * 7919 % 50257)});
  const auto source = runtime::io::id_file_tokens(folder.write("x.bin", bytes), 50257);
  const Ids all = read(*source, 0, 20000);
  CHECK(all[19999] == 19999 * 7919 % 50257);
  for (const std::int64_t at : {0, 1, 8191, 8192, 19997})
    CHECK(read(*source, at, 3) == Ids(all.begin() + at, all.begin() + at + 3));
}

TEST_CASE("synthetic ids are even, the same for a seed, and readable from any place") {
  const auto source = runtime::io::synthetic_tokens(10, 1);
  const Ids ids = read(*source, 0, 10000);
  CHECK(read(*source, 4567, 100) == Ids(ids.begin() + 4567, ids.begin() + 4667));
  CHECK(read(*runtime::io::synthetic_tokens(10, 1), 0, 10000) == ids);
  CHECK(read(*runtime::io::synthetic_tokens(10, 2), 0, 10000) != ids);
  // 1000 of each, give or take 5 · sqrt(1000 · 0.9) = 150.
  for (std::int32_t id = 0; id < 10; ++id)
    CHECK(std::abs(std::ranges::count(ids, id) - 1000) < 150);
  CHECK(read(*runtime::io::synthetic_tokens(1, 1), 99, 3) == Ids{0, 0, 0});
  check_refused([] { runtime::io::synthetic_tokens(0, 1); }, ErrorKind::bad_input,
                "a vocabulary of 0");
}

TEST_CASE("what the user names decides what is read") {
  const ScratchFolder folder;
  folder.write("x.bin", packed<std::uint16_t>({300, 301}));
  CHECK(read(*runtime::io::open_tokens((folder / "x.bin").string(), 400, 1), 0, 1) == Ids{300});
  folder.write("x.txt", "hi");
  CHECK(read(*runtime::io::open_tokens((folder / "x.txt").string(), 400, 1), 0, 1) == Ids{'h'});
  CHECK(read(*runtime::io::open_tokens("", 400, 1), 0, 1) == Ids{'F'});
  CHECK(read(*runtime::io::open_tokens("shipped", 400, 1), 0, 1) == Ids{'F'});
  CHECK(runtime::io::open_tokens("synthetic", 400, 5)->origin() == "synthetic (seed 5)");
}

TEST_CASE("targets are the next tokens, sequences follow one another, and begin again") {
  const ScratchFolder folder;
  const auto source = letters(folder, 12);  // a … l: (12 - 1) / 3 = 3 sequences, j … l never seen
  const BatchShape shape{.sequences = 2, .length = 3};
  const Batches batches(*source, shape);
  CHECK(batches.sequences() == 3);
  CHECK(batches.counted_targets() == 6);
  CHECK(batch(batches, shape, 0, 0, 0).ids == Ids{'a', 'b', 'c', 'd', 'e', 'f'});
  CHECK(batch(batches, shape, 0, 0, 0).targets == Ids{'b', 'c', 'd', 'e', 'f', 'g'});
  CHECK(batch(batches, shape, 1, 0, 0).ids == Ids{'g', 'h', 'i', 'a', 'b', 'c'});
  CHECK(batch(batches, shape, 1, 0, 0).targets == Ids{'h', 'i', 'j', 'b', 'c', 'd'});
  CHECK(batch(batches, shape, 3, 0, 0).ids == batch(batches, shape, 0, 0, 0).ids);
}

TEST_CASE("the sequence that ends with the text's last target is seen") {
  const ScratchFolder folder;
  const BatchShape shape{.length = 3};
  CHECK(Batches(*letters(folder, 6), shape).sequences() == 1);
  const auto source = letters(folder, 7);
  const Batches batches(*source, shape);
  CHECK(batches.sequences() == 2);
  CHECK(batch(batches, shape, 1, 0, 0).targets == Ids{'e', 'f', 'g'});
}

TEST_CASE("a text shorter than a sequence is filled up, and what ends is ignored") {
  const ScratchFolder folder;
  const auto source = letters(folder, 3);
  const BatchShape shape{.ranks = 2, .sequences = 2, .length = 5};
  const Batches batches(*source, shape);
  const Pair pair = batch(batches, shape, 9, 0, 1);
  CHECK(pair.ids == Ids{'a', 'b', 'c', 0, 0, 'a', 'b', 'c', 0, 0});
  constexpr std::int32_t no = kIgnoreIndex;
  CHECK(pair.targets == Ids{'b', 'c', no, no, no, 'b', 'c', no, no, no});
  CHECK(batches.counted_targets() == 4);
  // As many tokens as a sequence: only the last has no next one.
  const auto exact = letters(folder, 5);
  const Batches last(*exact, shape);
  CHECK(batch(last, shape, 0, 0, 0).targets == Ids{'b', 'c', 'd', 'e', no, 'b', 'c', 'd', 'e', no});
  CHECK(last.counted_targets() == 8);
}

TEST_CASE("the tokens of a step depend on their number, not on who shares them") {
  const ScratchFolder folder;
  std::string bytes;
  for (std::uint16_t i = 0; i < 1000; ++i) bytes += packed<std::uint16_t>({i});
  const auto source = runtime::io::id_file_tokens(folder.write("x.bin", bytes), 1000);
  const Ids alone = seen_in_step(*source, {.sequences = 24, .length = 5}, 3);
  // Step 3 begins at sequence 72, token 360.
  CHECK(alone.front() == 360);
  CHECK(alone.size() == 120);
  for (const BatchShape shape : {BatchShape{2, 1, 12, 5}, BatchShape{8, 3, 1, 5},
                                 BatchShape{3, 4, 2, 5}, BatchShape{1, 24, 1, 5}})
    CHECK(seen_in_step(*source, shape, 3) == alone);
}

// Steps 0 and 1 of two ranks take 8 sequences of 3: step 2 of four ranks begins with the ninth.
TEST_CASE("a run that goes on takes the sequences that follow, on other ranks too") {
  const ScratchFolder folder;
  const auto source = letters(folder, 26 + 26);
  const BatchShape two{.ranks = 2, .micro_batches = 1, .sequences = 2, .length = 3};
  const Batches before(*source, two);
  CHECK(before.taken_before(0) == 0);
  CHECK(before.taken_before(2) == 8);
  const BatchShape four{
      .ranks = 4, .micro_batches = 1, .sequences = 1, .length = 3, .first_step = 2, .taken = 8};
  const Batches after(*source, four);
  for (std::int64_t step : {2, 3, 4})
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const Pair whole = batch(before, two, step, 0, rank / 2);
      const Pair part = batch(after, four, step, 0, rank);
      const auto at = rank % 2 == 0 ? whole.ids.begin() : whole.ids.begin() + 3;
      CHECK(Ids(at, at + 3) == part.ids);
    }
  CHECK(batch(after, four, 2, 0, 0).ids == Ids{'a' + 24, 'a' + 25, 'a' + 26});
  CHECK(after.taken_before(3) == 12);
  check_refused([&] { batch(after, four, 1, 0, 0); }, ErrorKind::internal, "no such micro-batch");
}

TEST_CASE("shapes that are none are refused") {
  const auto source = runtime::io::synthetic_tokens(10, 1);
  for (const BatchShape shape : {BatchShape{0, 1, 1, 1}, BatchShape{1, 0, 1, 1},
                                 BatchShape{1, 1, -1, 1}, BatchShape{1, 1, 1, 0}})
    check_refused([&] { Batches(*source, shape); }, ErrorKind::bad_input, "at least 1 is needed");
  check_refused(
      [&] {
        Batches(*source, {1, 1, std::int64_t{1} << 40, std::int64_t{1} << 40});
      },
      ErrorKind::bad_input, "overflow");
  const BatchShape shape{.ranks = 2};
  const Batches batches(*source, shape);
  check_refused([&] { batch(batches, shape, 0, 0, 2); }, ErrorKind::internal,
                "no such micro-batch");
  check_refused([&] { batch(batches, shape, -1, 0, 0); }, ErrorKind::internal,
                "no such micro-batch");
}
