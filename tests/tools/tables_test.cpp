// Rows in and rows out of `batch`: RFC 4180, GitHub's tables, pages, and the lines they are read
// from.
#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

#include "models/base/error.h"
#include "tools/cli/batch_answers.h"
#include "tools/cli/fields_json.h"
#include "tools/cli/line_reader.h"
#include "tools/cli/query_csv.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Cells = std::vector<std::string>;

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

// A file with some text, gone with the test.
struct Written {
  std::string path = "/tmp/plimsoll_lines_XXXXXX";
  explicit Written(std::string_view text) {
    const int file = ::mkstemp(path.data());
    REQUIRE(file >= 0);
    ::close(file);
    std::ofstream(path, std::ios::binary) << text;
  }
  ~Written() { ::unlink(path.c_str()); }
};

Cells lines_of(std::string_view text) {
  const Written file(text);
  LineReader reader(file.path);
  Cells lines;
  while (const auto line = reader.next()) lines.emplace_back(*line);
  return lines;
}

BatchAnswers answers(const char* form, const char* fields) {
  Options options;
  if (*form != '\0') options.add(form, "");
  if (*fields != '\0') options.add("fields", fields);
  return BatchAnswers(options);
}

constexpr std::string_view kPlan =
    R"({"schema":"plimsoll.plan/1","verdict":"fits","peak_bytes":1610612736,)"
    R"("headroom_bytes":-1536,"time":{"step_seconds":0.123456},"ranks":[{"peak_bytes":7}]})";

std::string row_of(const BatchAnswers& form, const std::string& id) {
  BatchLine line{.number = 3, .id = id, .answered = true};
  line.body = form.body(std::string(kPlan));
  return form.row(line);
}

std::string failed_row(const BatchAnswers& form, const std::string& id) {
  return form.row({.number = 4, .id = id, .kind = "bad_input", .message = "a|b, \"c\" <d>"});
}
}  // namespace

TEST_CASE("cells of a row are what RFC 4180 says they are") {
  CHECK(csv_cells("") == Cells{""});
  CHECK(csv_cells("a,b") == Cells{"a", "b"});
  CHECK(csv_cells(",a,") == Cells{"", "a", ""});
  CHECK(csv_cells(R"("a,b",c)") == Cells{"a,b", "c"});
  CHECK(csv_cells(R"("say ""no""",c)") == Cells{"say \"no\"", "c"});
  CHECK(csv_cells(R"("""")") == Cells{"\""});
  CHECK(csv_cells(R"("a""")") == Cells{"a\""});
  CHECK(csv_cells(R"("",x)") == Cells{"", "x"});
  CHECK(csv_cells(R"(a"b)") == Cells{"a\"b"});  // a quote inside is a letter
  CHECK(refusal([] { return csv_cells(R"("a)"); }) ==
        "CSV: a quoted cell does not end on its line");
  CHECK(refusal([] { return csv_cells(R"("a"")"); }) ==
        "CSV: a quoted cell does not end on its line");
  CHECK(refusal([] { return csv_cells(R"("a"b)"); }) == "CSV: text behind a quoted cell");
  CHECK(refusal([] { return csv_cells(R"("""a""" b)"); }) == "CSV: text behind a quoted cell");
  CHECK(refusal([] { return csv_cells(R"("" "a")"); }) == "CSV: text behind a quoted cell");
}

TEST_CASE("a first row of options is a table's, and any other line a question") {
  CHECK(csv_keys("model,zero") == Cells{"model", "zero"});
  CHECK(csv_keys("\xef\xbb\xbfmodel,zero") == Cells{"model", "zero"});
  CHECK(csv_keys("id,params,micro_batch") == Cells{"id", "params", "micro_batch"});
  CHECK(csv_keys("model") == Cells{"model"});
  for (const char* line : {"id,zero", "model,size", "{\"model\": \"gpt2\"}", "\"model\"", "", "id"})
    CHECK_MESSAGE(!csv_keys(line), line);
}

TEST_CASE("a row of a table is a question; an empty cell is not said") {
  const Cells keys{"id", "model", "micro_batch", "detail"};
  CHECK(csv_query(keys, "7,gpt2,4,yes") ==
        R"({"id":"7","model":"gpt2","micro_batch":"4","detail":true})");
  CHECK(csv_query(keys, ",gpt2,,no") == R"({"model":"gpt2","detail":false})");
  CHECK(refusal([&] { return csv_query(keys, "7,gpt2"); }) ==
        "CSV: 2 cells, and the first row has 4");
  CHECK(refusal([&] { return csv_query(keys, "7,gpt2,4,no,"); }) ==
        "CSV: 5 cells, and the first row has 4");
  CHECK(refusal([&] { return csv_query(keys, "7,gpt2,4,maybe"); }) ==
        "--detail maybe: must be yes or no");
}

TEST_CASE("a line of a table ends with CR LF, and quotes what would end a cell") {
  CHECK(csv_line({}) == "\r\n");
  CHECK(csv_line({"a", "", "b c"}) == "a,,b c\r\n");
  CHECK(csv_line({"1,5", "say \"no\"", "x\ny", "x\ry"}) ==
        "\"1,5\",\"say \"\"no\"\"\",\"x\ny\",\"x\ry\"\r\n");
  CHECK(csv_cell("null") == "");
  CHECK(csv_cell("1.5") == "1.5");
  CHECK(csv_cell(R"("a \"b\"")") == "a \"b\"");
}

TEST_CASE("fields are paths of a plan, and null where it has none") {
  CHECK(
      Fields("peak_bytes,time.step_seconds,ranks.0.peak_bytes,ranks.1.peak_bytes").values(kPlan) ==
      Cells{"1610612736", "0.123456", "7", "null"});
  CHECK(Fields("verdict").values(kPlan) == Cells{"\"fits\""});
  CHECK(Fields("ranks.1234567.peak_bytes").values(kPlan) == Cells{"null"});
  for (const char* path : {"peak_bytes.", "ranks.x.peak_bytes", "ranks..peak_bytes",
                           "ranks.12345678.peak_bytes", "time.nothing", "peak_bytes.more"})
    CHECK_MESSAGE(refusal([&] {
                    return Fields(path);
                  }).starts_with(std::string("--fields ") + path + ": no field of a plan"),
                  path);
  CHECK(refusal([] { return Fields("step_seconds"); }) ==
        "--fields step_seconds: no field of a plan; did you mean 'time.step_seconds'?");
  CHECK(refusal([] { return Fields("peak_byte"); }) ==
        "--fields peak_byte: no field of a plan; did you mean 'peak_bytes'?");
  CHECK(refusal([] { return Fields("verdict,verdict"); }) == "--fields verdict: is given twice");
}

TEST_CASE("an answer is a document, and its id stands first in it") {
  const BatchAnswers whole = answers("", "");
  CHECK(whole.head() == "");
  CHECK(whole.foot({.number = 9}) == "");
  CHECK(row_of(whole, "") == std::string(kPlan) + "\n");
  CHECK(row_of(whole, "\"a\"") == "{\"id\":\"a\"," + std::string(kPlan.substr(1)) + "\n");
  CHECK(failed_row(whole, "5") ==
        "{\"id\":5,\"line\":4,\"error\":{\"kind\":\"bad_input\",\"message\":"
        "\"a|b, \\\"c\\\" <d>\"}}\n");
  CHECK(failed_row(whole, "") ==
        "{\"line\":4,\"error\":{\"kind\":\"bad_input\",\"message\":\"a|b, "
        "\\\"c\\\" <d>\"}}\n");
  CHECK(row_of(answers("", "verdict,peak_bytes"), "5") ==
        "{\"id\":5,\"verdict\":\"fits\",\"peak_bytes\":1610612736}\n");
}

TEST_CASE("an answer is a row of CSV, with as many cells where it failed") {
  const BatchAnswers csv = answers("csv", "verdict,peak_bytes");
  CHECK(csv.head() == "line,id,verdict,peak_bytes,error\r\n");
  CHECK(row_of(csv, "\"a,b\"") == "3,\"a,b\",fits,1610612736,\r\n");
  CHECK(failed_row(csv, "") == "4,,,,\"a|b, \"\"c\"\" <d>\"\r\n");
  CHECK(failed_row(answers("csv", "verdict"), "") == "4,,,\"a|b, \"\"c\"\" <d>\"\r\n");
  CHECK(csv.foot({.number = 9}) == "");
}

TEST_CASE("an answer is a row of a table in Markdown, in which nothing breaks out of its cell") {
  const BatchAnswers table = answers("markdown", "verdict,peak_bytes");
  CHECK(table.head() ==
        "| line | id | verdict | peak_bytes | error |\n| --- | --- | --- | --- | --- |\n");
  CHECK(row_of(table, "\"`a\\\\\"") == "| 3 | \\`a\\\\ | fits | 1610612736 |  |\n");
  CHECK(failed_row(table, "") == "| 4 |  |  |  | a\\|b, \"c\" \\<d> |\n");
}

// 1610612736 = 1.5 · 2^30, 1536 = 1.5 · 2^10.
TEST_CASE("an answer is a row of a page: sizes as people read them, the exact figure beside") {
  const BatchAnswers page = answers("html", "verdict,peak_bytes,headroom_bytes,time.step_seconds");
  CHECK(page.head().find("<tr><th scope=\"col\">line</th><th scope=\"col\">id</th><th "
                         "scope=\"col\">verdict</th>") != std::string::npos);
  CHECK(row_of(page, "\"<a>\"") ==
        "<tr><td class=\"n\">3</td><td class=\"w\">&lt;a&gt;</td><td class=\"w\">fits</td>"
        "<td class=\"n\"><data value=\"1610612736\" title=\"1610612736\">1.50 GiB</data></td>"
        "<td class=\"n\"><data value=\"-1536\" title=\"-1536\">-1.50 KiB</data></td>"
        "<td class=\"n\"><data value=\"0.123456\" title=\"0.123456\">0.1235</data></td>"
        "<td class=\"w not\"></td></tr>\n");
  CHECK(failed_row(page, "") ==
        "<tr><td class=\"n\">4</td><td class=\"w\"></td><td></td><td></td><td></td><td></td>"
        "<td class=\"w not\">a|b, &quot;c&quot; &lt;d&gt;</td></tr>\n");
  CHECK(page.foot({.number = 9}).find(">9 lines read.<") != std::string::npos);
}

TEST_CASE("a table without fields has the usual ones, and answers have one form") {
  CHECK(answers("csv", "").head() ==
        "line,id,verdict,peak_bytes,reserved_bytes,device_bytes,usable_bytes,headroom_bytes,"
        "time.step_seconds,time.tokens_per_second,error\r\n");
  Options two;
  two.add("csv", "");
  two.add("html", "x.html");
  CHECK(refusal([&] { return BatchAnswers(two); }) ==
        "--csv, --markdown, --html: give one of them, answers have one form");
  Options both;
  both.add("markdown", "");
  both.add("json", "-");
  CHECK(refusal([&] { return BatchAnswers(both); }).starts_with("--markdown with --json: "));
}

TEST_CASE("lines are read without their ends, the last one without any too") {
  CHECK(lines_of("") == Cells{});
  CHECK(lines_of("\n") == Cells{""});
  CHECK(lines_of("a\r\n\nb\n") == Cells{"a", "", "b"});
  CHECK(lines_of("a\nb") == Cells{"a", "b"});
  CHECK(lines_of("a\nb\r") == Cells{"a", "b"});
  CHECK(lines_of("a\rb\n") == Cells{"a\rb"});
  CHECK(refusal([] { return LineReader("/nonexistent/x"); }) ==
        "/nonexistent/x: No such file or directory");
  // What is read at once is 64 KiB: lines end before, at and behind that.
  for (const std::size_t length : {65534U, 65535U, 65536U, 65537U, 200'000U}) {
    const std::string line(length, 'x');
    CHECK(lines_of(line + "\n" + line + "y\nz") == Cells{line, line + "y", "z"});
  }
}

TEST_CASE("a line of 16 MiB is read, and of 17 MiB refused") {
  const std::string longest(16 << 20, 'x');
  CHECK(lines_of(longest + "\n") == Cells{longest});
  CHECK(refusal([&] {
          return lines_of(longest + std::string(1 << 20, 'y'));
        }).ends_with(": a line of more than 16 MiB"));
}

TEST_CASE("a reader is ready where a whole line is there, and not before it has read") {
  const Written file("a\nb\nc");
  LineReader reader(file.path);
  CHECK(!reader.ready());
  CHECK(reader.next() == "a");
  CHECK(reader.ready());
  CHECK(reader.next() == "b");
  CHECK(!reader.ready());  // perhaps more of it comes
  CHECK(reader.next() == "c");
  CHECK(!reader.next());
}
