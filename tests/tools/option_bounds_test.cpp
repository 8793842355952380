// Where each option's numbers begin and end, and how much of a value a message repeats.
#include <doctest/doctest.h>

#include "tools/cli/command_line.h"
#include "tools/cli/refusals.h"
#include "tools/cli/request.h"
#include "tools/cli/search_scope.h"
#include "tools/cli/values.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

// The message, or "" where the question is taken.
template <class Ask>
std::string refusal(const Given& given, Ask ask) {
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  try {
    ask(options, sources);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

std::string fit_refusal(Given given) {
  given.emplace_back("gpu", "h100");
  return refusal(given, [](const Options& options, Sources& sources) {
    (void)request_from("gpt2", options, sources);
  });
}

std::string search_refusal(Given given) {
  given.emplace_back("gpu", "h100");
  return refusal(given, [](const Options& options, Sources& sources) {
    (void)search_request("gpt2", options, sources);
  });
}

struct Bounds {
  const char* option;
  const char *least, *below;  // "": no such end
  const char *most, *beyond;
  Given beside = {};
};

template <class Refusal>
void check_bounds(const Bounds& b, Refusal refused) {
  const auto with = [&](const char* value) {
    Given given{{b.option, value}};
    given.insert(given.end(), b.beside.begin(), b.beside.end());
    return refused(given);
  };
  CAPTURE(b.option);
  for (const char* taken : {b.least, b.most})
    if (*taken != '\0') CHECK_MESSAGE(with(taken) == "", taken);
  for (const char* not_taken : {b.below, b.beyond}) {
    CAPTURE(not_taken);
    const std::string start = std::string("--") + b.option + " " + not_taken + ": ";
    if (*not_taken != '\0') CHECK(with(not_taken).starts_with(start));
  }
}

const Given kFsdp{{"zero", "3"}, {"gpus", "8"}};
const Given kLora{{"lora-rank", "8"}};
const Given kOwn{{"stack", "plimsoll"}};
const Given kDeepSpeed{{"stack", "deepspeed"}, {"zero", "3"}, {"gpus", "8"}};
}  // namespace

// Ends in powers of two are 2^16 = 65536, 2^18 = 262144, 2^20 = 1048576.
TEST_CASE("each number of a question is taken from its least to its most, and not beyond") {
  const Bounds all[] = {
      {"gpus", "1", "0", "262144", "262145"},
      {"gpus-per-node", "1", "0", "65536", "65537"},
      {"zero", "0", "-1", "3", "4", {{"gpus", "8"}}},
      {"shard-group", "1", "-1", "262144", "262145", {{"zero", "3"}, {"gpus", "262144"}}},
      {"fsdp-version", "1", "0", "2", "3", kFsdp},
      {"bucket-cap-mb", "1", "0", "1048576", "1048577"},
      {"reduce-bucket", "1", "0", "", "", kOwn},
      {"reduce-bucket-size", "1", "0", "", "", kDeepSpeed},
      {"sub-group-size", "0", "-1", "", "", kDeepSpeed},
      {"stage3-prefetch-bucket-size", "1", "0", "", "", kDeepSpeed},
      {"stage3-param-persistence-threshold", "0", "-1", "", "", kDeepSpeed},
      {"galore-rank", "1", "0", "1048576", "1048577"},
      {"lora-rank", "1", "0", "1048576", "1048577"},
      {"lora-alpha", "0", "-0.001", "1000000000", "1000000001", kLora},
      {"lora-dropout", "0", "-0.001", "0.999", "0.9991", kLora},
      {"dropout", "0", "-0.001", "0.999", "0.9991"},
      {"intra-node-bandwidth", "0.001", "0.0009", "1000000", "1000001"},
      {"inter-node-bandwidth", "0.001", "0.0009", "1000000", "1000001"},
      {"gpu-memory", "1048576", "1048575", "", ""},
      {"gpu-memory", "1MiB", "0.99MiB", "", ""},
      {"reserve", "0", "-1", "1073741823", "1073741824", {{"gpu-memory", "1GiB"}}},
      {"seq-len", "1", "0", "1024", "1025"},
      // 1024 tokens · 9007199254740991 = 2^63 - 1024; once more is 2^63.
      {"micro-batch", "1", "0", "9007199254740991", ""},
      {"grad-accum", "1", "0", "9007199254740991", ""},
      {"global-batch", "1", "0", "", ""},
      {"tp", "1", "0", "1", "2"},
      {"transformers-version", "4.45", "4.44.9", "5.23", "5.24"},
      {"torch-version", "2.4", "2.3.9", "2.11", "2.11.1"},
  };
  for (const Bounds& bounds : all) check_bounds(bounds, fit_refusal);
  for (const char* option : {"micro-batch", "grad-accum"})
    CHECK(fit_refusal({{option, "9007199254740992"}}) != "");
  // A count of ranks that is not modelled has an end too: 2^30.
  CHECK(fit_refusal({{"pp", "1073741824"}}).find("not modelled yet") != std::string::npos);
  CHECK(fit_refusal({{"pp", "1073741825"}}) == "--pp 1073741825: must be at most 1073741824");
}

TEST_CASE("each name that is not modelled is refused as such, and none of the others") {
  int modelled = 0, not_modelled = 0;
  for (const Option& option : plan_options())
    for (std::size_t i = 0; i < option.names.size(); ++i) {
      const std::string message =
          fit_refusal({{std::string(option.name), std::string(option.names[i])}});
      const bool said = message == "--" + std::string(option.name) + " " +
                                       std::string(option.names[i]) + ": " +
                                       std::string(option.unmodelled_name);
      CAPTURE(message);
      CHECK(said == (i >= option.modelled));
      ++(i < option.modelled ? modelled : not_modelled);
    }
  CHECK(modelled > 20);
  CHECK(not_modelled >= 5);
}

TEST_CASE("FSDP's options are of its stages, 2 and 3, and DDP's of 0 and 1") {
  for (const char* zero : {"0", "1", "2", "3"}) {
    const bool fsdp = *zero >= '2';
    CAPTURE(zero);
    const auto taken = [&](const char* option, const char* value) {
      return fit_refusal({{"gpus", "8"}, {"zero", zero}, {option, value}}).empty();
    };
    for (const auto& [option, value] :
         {std::pair("fsdp-version", "1"), {"fsdp-upcast", "no"}, {"grad-dtype", "fp32"}})
      CHECK_MESSAGE(taken(option, value) == fsdp, option);
    for (const auto& [option, value] :
         {std::pair("bucket-cap-mb", "1"), {"gradient-as-bucket-view", "yes"}})
      CHECK_MESSAGE(taken(option, value) == !fsdp, option);
  }
}

TEST_CASE("options of FSDP1 are of version 1 where FSDP is, with both of their values") {
  const char* of_1[] = {"fsdp-activation-checkpointing", "fsdp-sync-module-states",
                        "fsdp-use-orig-params"};
  for (const char* zero : {"0", "1", "2", "3"})
    for (const char* version : {"1", "2"}) {
      if (*zero < '2' && *version == '1') continue;  // refused itself
      CAPTURE(zero);
      CAPTURE(version);
      for (const char* option : of_1)
        for (const char* value : {"yes", "no"}) {
          Given given{{"gpus", "8"}, {"zero", zero}, {"recompute", "full"}, {option, value}};
          if (*zero >= '2') given.emplace_back("fsdp-version", version);
          const std::string message = fit_refusal(given);
          const std::string said = "--" + std::string(option) + " " + value;
          CHECK(message == (*version == '1' ? "" : said + ": is of --fsdp-version 1"));
        }
    }
}

TEST_CASE("so is each number of a search") {
  const Bounds all[] = {
      {"top", "1", "0", "100", "101"},
      {"threads", "1", "0", "256", "257"},
      {"global-batch", "1", "0", "1099511627776", "1099511627777"},  // 2^40
      {"min-headroom", "0", "-1", "1073741823", "1073741824", {{"gpu-memory", "1GiB"}}},
  };
  for (const Bounds& bounds : all) check_bounds(bounds, search_refusal);
}

// 57 letters and three dots, or 60 letters: no more of it, and no less.
TEST_CASE("a message repeats the beginning of a long value, and not all of it") {
  const std::string begin(57, 'x'), value = begin + "yyy" + std::string(40, 'z');
  int shown = 0;
  for (const Option& option : plan_options()) {
    if (option.value.empty() || option.repeatable) continue;
    const std::string name(option.name);
    if (name == "params" || name == "assume") continue;  // of other models
    Given given{{name, value}};
    if (name.starts_with("lora-") || name == "adapter-dtype" || name == "use-dora" ||
        name == "modules-to-save")
      if (name != "lora-rank") given.emplace_back("lora-rank", "8");
    if (name == "fsdp-upcast" || name == "grad-dtype") {
      given.emplace_back("zero", "3");
      given.emplace_back("gpus", "8");
    }
    const std::string message = fit_refusal(given);
    CAPTURE(name);
    CAPTURE(message);
    if (message.find("--" + name + " " + begin) == std::string::npos) continue;  // a file's name
    ++shown;
    CHECK(message.find(begin + "y") == std::string::npos);
    if (!name.ends_with("targets") && !name.ends_with("save"))
      CHECK(message.find(begin + "...: ") != std::string::npos);
  }
  CHECK(shown >= 40);
  CHECK(fit_refusal({{"pp-schedule", value}}).starts_with("--pp-schedule " + begin + "...: "));
  CHECK(fit_refusal({{"torch-version", value}}) ==
        "--torch-version " + begin + "...: must be a release, such as 2.8.0");
}

TEST_CASE("a value of sixty letters stands whole, of sixty-one it is cut") {
  const auto said = [](std::size_t letters) {
    try {
      refuse_value("x", std::string(letters, 'a'), "why");
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  CHECK(said(60) == "--x " + std::string(60, 'a') + ": why");
  CHECK(said(61) == "--x " + std::string(57, 'a') + "...: why");
  const auto word = [](std::size_t letters) {
    try {
      (void)parse_command_line({std::string(letters, 'q')}, "1.2.3");
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  CHECK(word(60).starts_with("no command '" + std::string(60, 'q') + "' ("));
  CHECK(word(61).starts_with("no command '" + std::string(57, 'q') + "...' ("));
}

TEST_CASE("an option is named with its value and with the file that says it") {
  Options options;
  options.add("zero", "3");
  options.add("detail", "");
  options.add("fsdp-version", "1", "c.yaml: fsdp_config.fsdp_version");
  options.add("freeze", "a*");
  options.add("freeze", std::string(61, 'b'));
  CHECK(options.said("zero") == "--zero 3");
  CHECK(options.said("detail") == "--detail");
  CHECK(options.said("gpus") == "--gpus");  // not given
  CHECK(options.said("fsdp-version") == "c.yaml: fsdp_config.fsdp_version (--fsdp-version 1)");
  CHECK(options.origin("zero") == "");
  CHECK(options.all("freeze") == std::vector<std::string>{"a*", std::string(61, 'b')});
  CHECK(*options.find("freeze") == "a*");
  options.add("train", std::string(61, 'c'));
  CHECK(options.said("train") == "--train " + std::string(57, 'c') + "...");
}

TEST_CASE("a command line is one that a shell takes apart into the same words") {
  Options options;
  options.add("gpu", "h100-sxm-80gb");
  options.add("freeze", "*.norm.*");
  options.add("modules-to-save", "a b");
  options.add("detail", "");
  options.add("trainer", "it's");
  CHECK(command_text("org/model_1.json", options) ==
        "plimsoll fit org/model_1.json --gpu h100-sxm-80gb --freeze '*.norm.*' --modules-to-save "
        "'a b' --detail --trainer 'it'\\''s'");
  CHECK(command_text("", Options()) == "plimsoll fit");  // --params, or a file, names it
  CHECK(command_text("my model", Options()) == "plimsoll fit 'my model'");
}
