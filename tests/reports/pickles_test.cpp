// Pickles as Python writes them, digests at the ends of blocks, and every character of JSON's
// texts.
#include <doctest/doctest.h>

#include <string>

#include "models/base/error.h"
#include "reports/fingerprint.h"
#include "reports/json_writer.h"
#include "reports/snapshot/pickle_reader.h"
#include "reports/traces/memory_viz.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
std::string bytes(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}
std::string shown(const Pickle& pickle, Pickle::Id id) {
  const auto items = [&](const char* open, const char* close, bool pairs) {
    std::string out = open;
    std::size_t i = 0;
    for (const Pickle::Id item : pickle.items(id)) {
      out += (i == 0 ? "" : pairs && i % 2 == 1 ? ": " : ", ") + shown(pickle, item);
      ++i;
    }
    return out + close;
  };
  switch (pickle.kind(id)) {
    case Pickle::Kind::none:
      return "none";
    case Pickle::Kind::truth:
      return pickle.integer(id) != 0 ? "true" : "false";
    case Pickle::Kind::integer:
      return std::to_string(pickle.integer(id));
    case Pickle::Kind::real:
      return "real";
    case Pickle::Kind::text:
      return "'" + std::string(pickle.text(id)) + "'";
    case Pickle::Kind::list:
      return items("[", "]", false);
    case Pickle::Kind::tuple:
      return items("(", ")", false);
    case Pickle::Kind::dict:
      return items("{", "}", true);
  }
  return "";
}
std::string read(std::string_view hex) {
  const std::string content = bytes(hex);
  try {
    const Pickle pickle = read_pickle(content, "s");
    return shown(pickle, pickle.root());
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
}
}  // namespace

// pickle.dumps(object, protocol).hex() of Python 3.11.
TEST_CASE("what Python pickles in each protocol is read as it was") {
  const std::string object =
      R"({'n': [0, 1, -1, 127, 128, 255, 256, 65535, 65536, 2147483647, -2147483648, 2147483648, -2147483649, 4611686018427387904, -9223372036854775808], 'b': [true, false, none, real], 't': ((), (1), (1, 2), (1, 2, 3), (1, 2, 3, 4)), 'again': [[1, 'é'], [1, 'é']], 'd': {}, 'l': []})";
  CHECK(
      read(
          "80027d71002858010000006e71015d7102284b004b014affffffff4b7f4b804bff4d00014dffff4a00000100"
          "4affffff7f4a000000808a0500000080008a05ffffff7fff8a0800000000000000408a080000000000000080"
          "6558010000006271035d71042888894e473ff800000000000065580100000074710528294b018571064b014b"
          "028671074b014b024b03877108284b014b024b034b0474710974710a5805000000616761696e710b5d710c28"
          "5d710d284b015802000000c3a9710e65680d65580100000064710f7d711058010000006c71115d7112752"
          "e") == object);
  CHECK(
      read(
          "80037d71002858010000006e71015d7102284b004b014affffffff4b7f4b804bff4d00014dffff4a00000100"
          "4affffff7f4a000000808a0500000080008a05ffffff7fff8a0800000000000000408a080000000000000080"
          "6558010000006271035d71042888894e473ff800000000000065580100000074710528294b018571064b014b"
          "028671074b014b024b03877108284b014b024b034b0474710974710a5805000000616761696e710b5d710c28"
          "5d710d284b015802000000c3a9710e65680d65580100000064710f7d711058010000006c71115d7112752"
          "e") == object);
  CHECK(
      read(
          "800495b1000000000000007d94288c016e945d94284b004b014affffffff4b7f4b804bff4d00014dffff4a00"
          "0001004affffff7f4a000000808a0500000080008a05ffffff7fff8a0800000000000000408a080000000000"
          "000080658c0162945d942888894e473ff8000000000000658c01749428294b0185944b014b0286944b014b02"
          "4b038794284b014b024b034b04749474948c05616761696e945d94285d94284b018c02c3a99465680d658c01"
          "64947d948c016c945d94752e") == object);
  CHECK(
      read(
          "800595b1000000000000007d94288c016e945d94284b004b014affffffff4b7f4b804bff4d00014dffff4a00"
          "0001004affffff7f4a000000808a0500000080008a05ffffff7fff8a0800000000000000408a080000000000"
          "000080658c0162945d942888894e473ff8000000000000658c01749428294b0185944b014b0286944b014b02"
          "4b038794284b014b024b034b04749474948c05616761696e945d94285d94284b018c02c3a99465680d658c01"
          "64947d948c016c945d94752e") == object);
}

// Opcodes of Lib/pickletools.py, one after another.
TEST_CASE("each opcode of a pickle does its own, and what it cannot do is refused with its place") {
  struct Row {
    const char* hex;
    const char* shown;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"80024e2e", "none"},
           {"80054e2e", "none"},
           {"80014e2e", "s: offset 0: is no pickle of protocol 2 to 5"},
           {"80064e2e", "s: offset 0: is no pickle of protocol 2 to 5"},
           {"8002", "s: offset 0: is no pickle of protocol 2 to 5"},
           {"80024e", "s: offset 3: the file is cut off"},
           {"80024e2e00", "s: offset 3: something follows its end"},
           {"80024e4e2e", "s: offset 4: ends within a value"},
           {"80022e", "s: offset 2: ends within a value"},
           {"80024a000000802e", "-2147483648"},
           {"80024affffff7f2e", "2147483647"},
           {"80024bff2e", "255"},
           {"80024d00ff2e", "65280"},
           {"80028a08ffffffffffffff7f2e", "9223372036854775807"},
           {"80028a0800000000000000802e", "-9223372036854775808"},
           {"80028a09000000000000008000002e",
            "s: offset 13: opcode 0x00, which no snapshot of torch.cuda.memory holds; nothing of "
            "it "
            "was run"},
           {"80028a090000000000000080002e", "9223372036854775807"},
           {"80028a09ffffffffffffff7fff2e", "-9223372036854775808"},
           {"80028a018a2e", "-118"},
           {"800247000000000000f03f2e", "real"},
           {"8002580200000061622e", "'ab'"},
           {"80048d020000000000000061622e", "'ab'"},
           {"80048c00612e", "s: offset 4: adds to something that is no list"},
           {"80048c002e", "''"},
           {"80025d4b01614b02612e", "[1, 2]"},
           {"80025d284b014b02652e", "[1, 2]"},
           {"80027d4b014b02732e", "{1: 2}"},
           {"80027d284b014b024b034b04752e", "{1: 2, 3: 4}"},
           {"80024b014b024b03872e", "(1, 2, 3)"},
           {"80024b014b02862e", "(1, 2)"},
           {"80024b01852e", "(1)"},
           {"8002292e", "()"},
           {"8002284b014b02742e", "(1, 2)"},
           {"80024b01862e", "s: offset 4: takes a value that is not there"},
           {"80024b01284b0286742e", "s: offset 7: takes a value that is not there"},
           {"80024b01742e", "s: offset 4: takes a mark that is not there"},
           {"80024b014b02612e", "s: offset 6: adds to something that is no list"},
           {"80025d4b014b02732e", "s: offset 7: adds to something that is no dictionary"},
           {"80027d284b01752e", "s: offset 6: a key without a value"},
           {"80024b0771004b0871014b0968006801872e", "s: offset 17: ends within a value"},
           {"80024b0771004b087101864b0968006801872e", "s: offset 18: ends within a value"},
           {"80024b0571006800862e", "(5, 5)"},
           {"80024b0572000000006a00000000862e", "(5, 5)"},
           {"80044b05944b06946800680186872e", "(5, 6, (5, 6))"},
           {"80024b0571012e", "s: offset 4: a number of a value that is out of order"},
           {"80024b0568002e", "s: offset 4: refers to a value that was not read"},
           {"800271002e", "s: offset 2: remembers a value that is not there"},
           {"80049500000000000000004b052e", "5"},
           {"80044bff94302e",
            "s: offset 5: opcode POP, which no snapshot of torch.cuda.memory holds; nothing of it "
            "was run"}}) {
    CAPTURE(std::string(row.hex));
    CHECK(read(row.hex) == std::string(row.shown));
  }
}

TEST_CASE("the last of a dictionary's equal keys counts, and only texts are keys that are found") {
  // {'a': 1, 7: 2, 'a': 3}
  const std::string content = bytes("80047d288c01614b014b074b028c01614b03752e");
  const Pickle pickle = read_pickle(content, "s");
  CHECK(pickle.integer(*pickle.find(pickle.root(), "a")) == 3);
  CHECK_FALSE(pickle.find(pickle.root(), "b"));
  CHECK_FALSE(pickle.find(pickle.root(), ""));
  CHECK_FALSE(pickle.find(*pickle.find(pickle.root(), "a"), "a"));
}

// hashlib.sha256(b"a" * n): a block has 64 bytes, of which 8 are the length and one ends the text.
TEST_CASE("SHA-256 of texts that end before, at and behind the end of a block") {
  struct Row {
    std::size_t length;
    const char* digest;
  };
  for (const Row& row : std::initializer_list<Row>{
           {54, "a3f01b6939256127582ac8ae9fb47a382a244680806a3f613a118851c1ca1d47"},
           {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
           {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
           {57, "f13b2d724659eb3bf47f2dd6af1accc87b81f09f59f2b75e5c0bed6589dfe8c6"},
           {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
           {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
           {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
           {118, "879dc4f05b19ebc3b037f4683633df1332b054cf52fa372d323c421cb893a2aa"},
           {119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
           {120, "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
           {121, "e9615320128cc7a3d6078e9af05603188e5ccbf0d07d8b735d3df5e8e0c1281f"},
           {127, "c57e9278af78fa3cab38667bef4ce29d783787a2f731d4e12200270f0c32320a"},
           {128, "6836cf13bac400e9105071cd6af47084dfacad4e5e302c94bfed24e013afb73e"}}) {
    CAPTURE(row.length);
    CHECK(sha256(std::string(row.length, 'a')) == row.digest);
    CHECK(fingerprint(std::string(row.length, 'a')) == std::string(row.digest).substr(0, 16));
  }
}

TEST_CASE("every character below the blank has its escape in JSON, and no other but two") {
  constexpr std::string_view digits = "0123456789abcdef";
  for (int c = 0; c < 0x80; ++c) {
    CAPTURE(c);
    const auto one = static_cast<char>(c);
    std::string expected(1, one);
    if (c < 0x20) expected = std::string("\\u00") + digits[c / 16] + digits[c % 16];
    if (one == '\n') expected = "\\n";
    if (one == '\t') expected = "\\t";
    if (one == '\r') expected = "\\r";
    if (one == '"') expected = "\\\"";
    if (one == '\\') expected = "\\\\";
    CHECK(quoted(std::string("x") + one + "y") == "\"x" + expected + "y\"");
  }
}

namespace {
constexpr std::int64_t kFirst = 0x7f0000000000, kUnit = 512;

// "what place+size" of each event, in units from the first address on: + is taken, ? asked to be
// freed, - freed.
std::string events_of(const StepHistory& step) {
  const std::string content = memory_snapshot(step);
  const Pickle pickle = read_pickle(content, "s");
  const auto traces = pickle.items(*pickle.find(pickle.root(), "device_traces"));
  std::string out;
  for (const Pickle::Id event : pickle.items(traces[0])) {
    const auto number = [&](const char* key) { return pickle.integer(*pickle.find(event, key)); };
    const std::string action(pickle.text(*pickle.find(event, "action")));
    const Pickle::Id frame = pickle.items(*pickle.find(event, "frames"))[0];
    if (action == "segment_alloc") {
      out += "segment of " + std::to_string(number("size") / kUnit);
      CHECK(number("addr") == kFirst);
      continue;
    }
    out += action == "alloc" ? " +" : action == "free_requested" ? " ?" : " -";
    out += std::string(pickle.text(*pickle.find(frame, "name"))) +
           std::to_string((number("addr") - kFirst) / kUnit) + ":" + std::to_string(number("size"));
  }
  return out;
}
TimelinePoint op(const char* name, std::int64_t units) {
  TimelinePoint out{.op = name, .phase = "forward", .high_water = Bytes(units * kUnit)};
  out.by_category[3] = out.high_water;
  return out;
}
}  // namespace

// a, b, c and d lie at 0, 2, 3 and 6 units. a and c end: e fits what c leaves exactly, f lies at 0.
// b ends behind f: its place and the unit between are one hole, which g fits exactly. h fits none.
TEST_CASE("what lives lies at the lowest free place, and holes side by side are one") {
  StepHistory step;
  step.ops = {op("x", 7), op("y", 6), op("z", 8)};
  const auto tensor = [&](const char* name, std::int64_t units, std::int64_t born,
                          std::int64_t died) {
    step.tensors.push_back({name, "activations", Bytes(units * kUnit), born, died});
  };
  tensor("a", 2, -1, 0);
  tensor("b", 1, -1, 1);
  tensor("c", 3, -1, 0);
  tensor("d", 1, -1, 3);
  tensor("e", 3, 1, 3);
  tensor("f", 1, 1, 3);
  tensor("g", 2, 2, 2);
  tensor("h", 1, 2, 3);
  step.peak = Bytes(8 * kUnit);
  CHECK(events_of(step) ==
        "segment of 8 +a0:1024 +b2:512 +c3:1536 +d6:512 ?a0:1024 -a0:1024 ?c3:1536 -c3:1536 "
        "+e3:1536 +f0:512 ?b2:512 -b2:512 +g1:1024 +h7:512 ?g1:1024 -g1:1024");
}

// 700 bytes take 1024; what an op holds beside its tensors is there while it runs.
TEST_CASE("a memory snapshot, from its first member to its last") {
  StepHistory step;
  step.origin = "planned";
  step.ops = {op("x", 0), op("y", 0)};
  step.ops[0].high_water = 1000_B;
  step.ops[0].by_category = {700_B, 0_B, 0_B, 300_B};
  step.ops[1].high_water = 700_B;
  step.ops[1].by_category = {700_B};
  step.ops[1].phase = "backward";
  step.tensors = {{"w", "parameters", 700_B, -1, 2}};
  step.peak = 1000_B;
  const std::string content = memory_snapshot(step);
  const Pickle pickle = read_pickle(content, "s");
  CHECK(
      shown(pickle, pickle.root()) ==
      "{'segments': ["
      "{'device': 0, 'address': 139637976727552, 'total_size': 1536, 'allocated_size': 1024, "
      "'active_size': 1024, 'requested_size': 700, 'stream': 0, 'segment_type': 'large', "
      "'is_expandable': false, "
      "'frames': ["
      "{'name': 'planned; addresses are not the allocator's', 'filename': 'plimsoll', 'line': 0}], "
      "'blocks': ["
      "{'address': 139637976727552, 'size': 1024, 'requested_size': 700, 'state': "
      "'active_allocated', "
      "'frames': ["
      "{'name': 'w', 'filename': 'parameters', 'line': 0}]}, "
      "{'address': 139637976728576, 'size': 512, 'requested_size': 0, 'state': 'inactive', "
      "'frames': []}]}], "
      "'device_traces': [["
      "{'action': 'segment_alloc', 'addr': 139637976727552, 'size': 1536, 'stream': 0, "
      "'frames': ["
      "{'name': 'planned; addresses are not the allocator's', 'filename': 'plimsoll', 'line': "
      "0}]}, "
      "{'action': 'alloc', 'addr': 139637976727552, 'size': 700, 'stream': 0, 'category': "
      "'parameters', "
      "'frames': ["
      "{'name': 'w', 'filename': 'parameters', 'line': 0}]}, "
      "{'action': 'alloc', 'addr': 139637976728576, 'size': 300, 'stream': 0, 'category': "
      "'activations', "
      "'frames': ["
      "{'name': 'x (while it runs)', 'filename': 'activations', 'line': 0}, "
      "{'name': 'x', 'filename': 'forward', 'line': 0}]}, "
      "{'action': 'free_requested', 'addr': 139637976728576, 'size': 300, 'stream': 0, 'category': "
      "'unknown', "
      "'frames': ["
      "{'name': 'x (while it runs)', 'filename': 'activations', 'line': 0}, "
      "{'name': 'x', 'filename': 'forward', 'line': 0}]}, "
      "{'action': 'free_completed', 'addr': 139637976728576, 'size': 300, 'stream': 0, 'category': "
      "'unknown', "
      "'frames': ["
      "{'name': 'x (while it runs)', 'filename': 'activations', 'line': 0}, "
      "{'name': 'x', 'filename': 'forward', 'line': 0}]}]]}");
}
