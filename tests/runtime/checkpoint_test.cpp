// Training checkpoints as folders: which one counts, what is refused, and what damage does.
#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <set>

#include "models/base/error.h"
#include "runtime/io/checkpoint.h"
#include "runtime/io/digest.h"
#include "runtime/io/file.h"
#include "tests/scratch_folder.h"

using namespace plimsoll;
using namespace plimsoll::runtime::io;
using plimsoll::test::bytes_of;
using plimsoll::test::ScratchFolder;
namespace fs = std::filesystem;

namespace {

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

TrainingCheckpoint example() {
  TrainingCheckpoint c;
  c.steps = 7;
  c.taken = 6;
  c.loss_scale = 32768;
  c.good_steps = 3;
  c.seed = 0xFEDCBA9876543210;
  c.learning_rate = 1e-4;
  c.warmup = 100;
  c.max_norm = 0.1;
  c.weight_decay = 0;
  c.data = "a \"file\"\n\xff";
  c.data_tokens = std::numeric_limits<std::int64_t>::max();
  c.data_digest = 1;
  c.sequences = 56;
  c.length = 16;
  c.precision = "fp16-mixed";
  c.optimizer = "adamw";
  c.quantize = "nf4-dq";
  c.parameters = {{"wte.weight", {300, 32}, true}, {"norm.weight", {32}, false}};
  c.shards = {{100, 0xFFFFFFFFFFFFFFFF}, {100, 0}};
  return c;
}

std::uint64_t digest_of(const std::string& bytes) {
  Digest digest;
  digest.add(std::as_bytes(std::span(bytes)));
  return digest.value();
}

// A whole checkpoint of one shard.
void save(const fs::path& folder, std::int64_t step, const std::string& bytes) {
  const UnfinishedCheckpoint unfinished(folder, step);
  unfinished.begin();
  OutputFile shard(unfinished.path() / shard_name(0, 1));
  shard.write(0, std::as_bytes(std::span(bytes)));
  shard.finish();
  TrainingCheckpoint about = example();
  about.steps = about.taken = step;
  about.shards = {{std::ssize(bytes), digest_of(bytes)}};
  unfinished.commit(about);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("what a checkpoint says of itself comes back") {
  const TrainingCheckpoint c = example(), back = parse_checkpoint(checkpoint_json(c), "it");
  CHECK(back.steps == 7);
  CHECK(back.taken == 6);
  CHECK(back.loss_scale == 32768);
  CHECK(back.good_steps == 3);
  CHECK(back.seed == 0xFEDCBA9876543210);
  CHECK(back.learning_rate == 1e-4);
  CHECK(back.warmup == 100);
  CHECK(back.max_norm == 0.1);
  CHECK(back.weight_decay == 0);
  CHECK(back.data == "a \"file\"\n\xef\xbf\xbd");  // U+FFFD for what is no UTF-8
  CHECK(back.data_tokens == std::numeric_limits<std::int64_t>::max());
  CHECK(back.data_digest == 1);
  CHECK(back.sequences == 56);
  CHECK(back.length == 16);
  CHECK(back.precision == "fp16-mixed");
  CHECK(back.optimizer == "adamw");
  CHECK(back.quantize == "nf4-dq");
  CHECK(back.parameters == c.parameters);
  REQUIRE(back.shards.size() == 2);
  CHECK(back.shards[0].bytes == 100);
  CHECK(back.shards[0].digest == 0xFFFFFFFFFFFFFFFF);
  CHECK(back.shards[1].digest == 0);
}

TEST_CASE("what a checkpoint cannot say is refused by its key") {
  const std::string good = checkpoint_json(example());
  const auto said = [&](const std::string& part, const std::string& instead) {
    std::string text = good;
    const std::size_t at = text.find(part);
    REQUIRE(at != std::string::npos);
    text.replace(at, part.size(), instead);
    return refusal([&] { parse_checkpoint(text, "it"); });
  };
  CHECK(
      said("checkpoint/1", "checkpoint/2").starts_with("it: schema is \"plimsoll.checkpoint/2\""));
  CHECK(said("\"all\": 7", "\"all\": -1").find("all is -1") != std::string::npos);
  CHECK(said("\"all\": 7", "\"every\": 7").find("all is missing") != std::string::npos);
  CHECK(said("\"taken\": 6", "\"taken\": 8").find("taken is 8") != std::string::npos);
  CHECK(said("32768", "0").find("loss_scale is 0") != std::string::npos);
  CHECK(said("32768", "1e39").find("loss_scale is 1e+39") != std::string::npos);
  CHECK(said("fedcba9876543210", "fedcba987654321").find("seed is") != std::string::npos);
  CHECK(said("fedcba9876543210", "fedcba987654321g").find("seed is") != std::string::npos);
  CHECK(said("\"bytes\": 100", "\"bytes\": 1.5").find("bytes is 1.5") != std::string::npos);
  CHECK(said("[300, 32]", "[3, 3, 3, 3, 3]").find("shape") != std::string::npos);
  CHECK(said("[300, 32]", "[9000000000000000000, 9]") != "");
  CHECK(said("\"shards\"", "\"parts\"").find("shards is missing") != std::string::npos);
}

// Each byte another one, and each end cut off: refused, or something that could have been written.
TEST_CASE("a damaged checkpoint.json does nothing worse than to be refused") {
  const std::string good = checkpoint_json(example());
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const int flip : {1, 4, 0x20, 0x80}) {
      std::string text = good;
      text[at] = static_cast<char>(text[at] ^ flip);
      refused += refusal([&] { parse_checkpoint(text, "it"); }).starts_with("it: ");
    }
  CHECK(refused > static_cast<int>(good.size()));
  for (std::size_t length = 0; length + 2 < good.size(); ++length)
    CHECK(refusal([&] { parse_checkpoint(good.substr(0, length), "it"); }) != "");
}

TEST_CASE("one byte more, less or other is another digest, however it is cut into pieces") {
  std::string bytes(37, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  std::set<std::uint64_t> seen{digest_of(bytes), digest_of(bytes + '\0')};
  CHECK(seen.size() == 2);
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = bytes;
      other[at] = static_cast<char>(other[at] ^ (1 << bit));
      seen.insert(digest_of(other));
    }
  CHECK(seen.size() == 2 + 37 * 8);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    seen.insert(digest_of(bytes.substr(0, length)));
  CHECK(seen.size() == 2 + 37 * 8 + 37);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut)
    for (std::size_t end = cut; end <= bytes.size(); ++end) {
      Digest digest;
      const auto all = std::as_bytes(std::span(bytes));
      digest.add(all.first(cut));
      digest.add(all.subspan(cut, end - cut));
      digest.add(all.subspan(end));
      CHECK(digest.value() == digest_of(bytes));
    }
}

TEST_CASE("the newest whole checkpoint counts, and a new one ends those before") {
  const ScratchFolder folder;
  const fs::path at = folder / "run";
  fs::path found;
  CHECK(refusal([&] { read_newest_checkpoint(at, found); }).find("there is no training") !=
        std::string::npos);
  save(at, 9, "nine");
  CHECK(names_in(at) == std::set<std::string>{"step-00000009"});
  save(at, 10, "ten");
  CHECK(names_in(at) == std::set<std::string>{"step-00000010"});
  CHECK(names_in(at / "step-00000010") ==
        std::set<std::string>{"checkpoint.json", "shard-0-of-1.safetensors"});
  // What a process left that ended in between: no name, no checkpoint.json, other things.
  fs::create_directories(at / "step-00000012.unfinished");
  fs::create_directories(at / "step-00000013");
  folder.write("run/step-00000012.unfinished/checkpoint.json", "{}");
  folder.write("run/step-x", "mine");
  folder.write("run/notes.unfinished", "mine");
  CHECK(read_newest_checkpoint(at, found).steps == 10);
  CHECK(found == at / "step-00000010");
  save(at, 100000000, "more digits");
  CHECK(read_newest_checkpoint(at, found).steps == 100000000);
  CHECK(names_in(at) == std::set<std::string>{"step-100000000", "step-x", "notes.unfinished"});
}

TEST_CASE(
    "a shard that is not there when all have written ends the checkpoint, not the one before") {
  const ScratchFolder folder;
  save(folder.path(), 1, "one");
  const UnfinishedCheckpoint unfinished(folder.path(), 2);
  unfinished.begin();
  TrainingCheckpoint about = example();
  about.steps = about.taken = 2;
  about.shards = {{3, digest_of("two")}};
  CHECK_THROWS_WITH_AS(unfinished.commit(about),
                       doctest::Contains("all ranks need one file system"), Error);
  folder.write(unfinished.path().filename().string() + "/" + shard_name(0, 1), "tw");
  CHECK_THROWS_AS(unfinished.commit(about), Error);
  fs::path found;
  CHECK(read_newest_checkpoint(folder.path(), found).steps == 1);
  CHECK(bytes_of(found / shard_name(0, 1)) == "one");
  remove_unfinished_checkpoints(folder.path());
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-00000001"});
}

TEST_CASE("a shard's bytes are those that were written") {
  const ScratchFolder folder;
  const std::string bytes(20, 'x');
  const CheckpointShard shard{20, digest_of(bytes)};
  check_shard(folder.write("whole", bytes), shard);
  CHECK(refusal([&] {
          check_shard(folder.write("short", bytes.substr(1)), shard);
        }).find("has 19 bytes, and was written with 20") != std::string::npos);
  std::string other = bytes;
  other[19] = 'y';
  CHECK(refusal([&] { check_shard(folder.write("other", other), shard); }).find("damaged") !=
        std::string::npos);
}
