#include "tools/cli/command_line.h"

#include <doctest/doctest.h>

#include "models/base/error.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
CommandLine parse(std::vector<std::string> words) {
  return parse_command_line(std::move(words), "1.2.3");
}

std::string refusal(std::vector<std::string> words) {
  try {
    (void)parse(std::move(words));
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}
}  // namespace

TEST_CASE("arguments and options may stand in any order") {
  const CommandLine line = parse({"fit", "--zero", "3", "llama-3.1-8b", "--detail", "--gpus=8",
                                  "--freeze", "a*", "--freeze", "b*"});
  CHECK(line.command->name == "fit");
  CHECK(line.argument == "llama-3.1-8b");
  CHECK(*line.options.find("zero") == "3");
  CHECK(*line.options.find("gpus") == "8");
  CHECK(line.options.has("detail"));
  CHECK(!line.options.has("quiet"));
  CHECK(line.options.all("freeze") == std::vector<std::string>{"a*", "b*"});
}

TEST_CASE("an option does not take the next option for its value") {
  CHECK(refusal({"fit", "gpt2", "--json", "--quiet"}) ==
        "--json needs a value, but --quiet follows");
  CHECK(refusal({"fit", "gpt2", "--json"}).starts_with("--json needs a value"));
  CHECK(refusal({"fit", "gpt2", "--json", ""}).starts_with("--json needs a value"));
  CHECK(refusal({"fit", "gpt2", "--json="}).starts_with("--json= needs a value"));
}

TEST_CASE("a value may be a dash or a negative number") {
  CHECK(*parse({"fit", "gpt2", "--json", "-"}).options.find("json") == "-");
  CHECK(*parse({"fit", "gpt2", "--gpus", "-1"}).options.find("gpus") == "-1");
  CHECK(parse({"batch", "-"}).argument == "-");
}

TEST_CASE("slips of the finger are named") {
  CHECK(refusal({"fti", "gpt2"}).starts_with("no command 'fti'; did you mean 'fit'?"));
  CHECK(refusal({"fit", "gpt2", "--zer", "1"}) == "fit has no option --zer; did you mean --zero?");
  CHECK(refusal({"fit", "gpt2", "-zero", "1"}) == "fit has no option -zero; did you mean --zero?");
  CHECK(refusal({"fit", "gpt2", "--micro_batch=4"}) ==
        "fit has no option --micro_batch; did you mean --micro-batch?");
}

TEST_CASE("what is given twice, too much or to the wrong command is refused") {
  CHECK(refusal({"fit", "gpt2", "--zero", "1", "--zero", "3"}) == "--zero is given 2 times");
  CHECK(refusal({"fit", "gpt2", "opt-125m"}) == "unexpected argument 'opt-125m' (fit takes MODEL)");
  CHECK(refusal({"gpus", "x"}) == "unexpected argument 'x' (gpus takes none)");
  CHECK(refusal({"gpus", "--zero", "1"}).starts_with("gpus has no option --zero"));
  CHECK(refusal({"fit", "gpt2", "--detail=yes"}) == "--detail takes no value");
  CHECK(refusal({"fit", ""}) == "MODEL is empty");
  CHECK(refusal({}).starts_with("a command is missing"));
  CHECK(refusal({"--zero", "1"}).starts_with("the command comes first"));
}

TEST_CASE("a command that takes several files gets them all") {
  const std::vector<std::string> files = parse({"compare", "a", "b", "c"}).arguments;
  CHECK(files == std::vector<std::string>{"a", "b", "c"});
  CHECK(refusal({"export", "a", "b"}).find("unexpected argument 'b'") != std::string::npos);
}

TEST_CASE("each command's help holds every option and an example at 80 columns") {
  for (const Command& command : commands()) {
    const std::string text = parse({std::string(command.name), "--help"}).text;
    CHECK(text.find("Example:\n  ") != std::string::npos);
    CHECK(text.find("--json FILE") != std::string::npos);
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      if (text.compare(begin, 6, "  echo") != 0 && text.compare(begin, 10, "  plimsoll") != 0)
        CHECK_MESSAGE(end - begin <= 80 + 4, text.substr(begin, end - begin));
    if (command.takes_plan_options)
      for (const Option& option : plan_options())
        CHECK_MESSAGE(text.find("--" + std::string(option.name)) != std::string::npos, option.name);
  }
}
