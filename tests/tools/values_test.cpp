#include "tools/cli/values.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
// The message of the Error{bad_input} that `call` throws; "" for none.
template <class Call>
std::string refusal(Call call) {
  try {
    (void)call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}
}  // namespace

TEST_CASE("sizes are decimal or binary as they are spelled") {
  CHECK(size_value("x", "80GB") == Bytes(80'000'000'000));
  CHECK(size_value("x", "80gb") == Bytes(80'000'000'000));
  CHECK(size_value("x", "512 MiB") == 512_MiB);
  CHECK(size_value("x", "1.5KiB") == 1536_B);
  CHECK(size_value("x", "84930265088") == Bytes(84930265088));
  CHECK(size_value("x", "1e9") == Bytes(1'000'000'000));
  CHECK(size_value("x", "0") == 0_B);
}

TEST_CASE("a fraction of a byte is dropped and not rounded up") {
  // 79.6 * 2^30 = 85469849190.4
  CHECK(size_value("x", "79.6GiB") == Bytes(85469849190));
  CHECK(size_value("x", "0.9B") == 0_B);
}

TEST_CASE("what is no size is refused with what is one") {
  for (const char* text : {"", "GB", "80Gb/s", "80G", "-1GB", "8e", "0x10", "1,000MB", "nan", "inf",
                           "80GB ", "1.2.3GB", "1234567890123456789B"})
    CHECK_MESSAGE(refusal([&] { return size_value("gpu-memory", text); }).find("must be a size") !=
                      std::string::npos,
                  text);
}

TEST_CASE("sizes and counts beyond 2^63 are overflow and never wrap") {
  CHECK(refusal([] { return size_value("x", "9e9TiB"); }) == "--x 9e9TiB: overflow: beyond 2^63");
  CHECK(refusal([] { return size_value("x", "1e999"); }).find("overflow") != std::string::npos);
  CHECK(refusal([] { return count_value("x", "1e30"); }).find("overflow") != std::string::npos);
  CHECK(count_value("x", "9.2e18") == Count(9'200'000'000'000'000'000));
  CHECK(refusal([] { return count_value("x", "9.3e18"); }).find("overflow") != std::string::npos);
  CHECK(refusal([] { return whole("x", "9223372036854775808", 0, 1); }) ==
        "--x 9223372036854775808: overflow: beyond 2^63");
}

TEST_CASE("counts are positive and whole") {
  CHECK(count_value("params", "7.5e9") == Count(7'500'000'000));
  CHECK(count_value("params", "7B") == Count(7'000'000'000));
  CHECK(count_value("params", "350m") == Count(350'000'000));
  CHECK(count_value("params", "1.0") == Count(1));
  for (const char* text : {"", "0", "-7e9", "1.5", "1e-3", "7.5G", "seven", "1e", "0e5"})
    CHECK_MESSAGE(refusal([&] { return count_value("params", text); }).starts_with("--params "),
                  text);
}

TEST_CASE("whole numbers are written as such and kept in range") {
  CHECK(whole("zero", "3", 0, 3) == 3);
  CHECK(refusal([] { return whole("zero", "4", 0, 3); }) == "--zero 4: must be at most 3");
  CHECK(refusal([] { return whole("gpus", "0", 1, 9); }) == "--gpus 0: must be at least 1");
  for (const char* text : {"", "1.0", "1e3", "+1", " 1", "1 ", "0x1", "one"})
    CHECK_MESSAGE(refusal([&] { return whole("gpus", text, 0, 9); }).find("whole number") !=
                      std::string::npos,
                  text);
}

TEST_CASE("a name that is nearly one of the accepted ones is suggested") {
  CHECK(choice<models::Precision>("precision", "bf16-mixed") == models::Precision::bf16_mixed);
  CHECK(refusal([] { return choice<models::Attention>("attention", "flsh"); }) ==
        "--attention flsh: did you mean 'flash'? (one of flash, eager, math, flash-1, flash-2, "
        "flash-3, cudnn, efficient, flex, xformers)");
  CHECK(refusal([] { return choice<models::Attention>("attention", "zzz"); }) ==
        "--attention zzz: must be one of flash, eager, math, flash-1, flash-2, flash-3, cudnn, "
        "efficient, flex, xformers");
}

TEST_CASE("recomputation every K layers needs a K") {
  CHECK(recompute_value("recompute", "full").kind == models::RecomputeKind::full);
  CHECK(recompute_value("recompute", "every:4") ==
        models::Recompute{models::RecomputeKind::every, 4});
  CHECK(recompute_value("recompute", "block:12") ==
        models::Recompute{models::RecomputeKind::block, 12});
  CHECK(recompute_value("recompute", "nth:2") == models::Recompute{models::RecomputeKind::nth, 2});
  CHECK(recompute_value("recompute", "recursive:8") ==
        models::Recompute{models::RecomputeKind::recursive, 8});
  for (const char* text :
       {"uniform:x", "uniform:0", "block", "block:", "block:-1", "nth",
        "nth:",      "nth:2.5",   "every", "every:", "every:0",  "every:-1",
        "every:2x",  "ful",       "",      "ops",    "ops:",     "ops:q_proj+q_proj",
        "budget:",   "fit:"})
    CHECK_MESSAGE(refusal([&] { return recompute_value("recompute", text); }) != "", text);
  for (const auto& [text, accepted] : std::initializer_list<std::pair<const char*, const char*>>{
           {"every:x", "must be every:K with a whole number K of layers, at least 1"},
           {"uniform:0", "must be uniform:N with a whole number N of layers, at least 1"},
           {"nth:0", "must be nth:N with a whole number N of layers, at least 1"},
           {"recursive:0", "must be recursive:C with a whole number C of layers, at least 1"},
           {"recursive:C", "must be recursive:C with a whole number C of layers, at least 1"},
           {"block:0", "must be block:N with a whole number N of layers, at least 1"},
           {"ops:q_proj+q_proj",
            "must be ops: and names of what is kept, as in ops:attention+q_proj, each once; or "
            "ops:torchtitan"}})
    CHECK(refusal([&] { return recompute_value("recompute", text); }) ==
          std::string("--recompute ") + text + ": " + accepted);
}

TEST_CASE("lists have no empty items") {
  CHECK(comma_list("x", "q_proj,v_proj") == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(refusal([] { return comma_list("x", "q_proj,"); }) != "");
  CHECK(refusal([] { return comma_list("x", ",q_proj"); }) != "");
}

TEST_CASE("a hostile value does not fill the screen") {
  const std::string text(100'000, 'x');
  CHECK(refusal([&] { return whole("gpus", text, 0, 1); }).size() < 200);
}

TEST_CASE("yes and no have two names each, and nothing else is either") {
  for (const char* word : {"yes", "true", "YES", "True"}) CHECK(yes_or_no("overlap-comm", word));
  for (const char* word : {"no", "false", "No", "FALSE"})
    CHECK_FALSE(yes_or_no("overlap-comm", word));
  for (const char* word : {"", "y", "1", "0", "on", "yes "})
    CHECK_THROWS_AS(yes_or_no("overlap-comm", word), Error);
}
