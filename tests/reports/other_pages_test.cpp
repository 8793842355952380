// Pages of measurements, comparisons, catalogs and fleets: what stands in which cell.
#include <doctest/doctest.h>

#include "models/base/error.h"
#include "reports/page/page.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
// A screen reader goes by them (WCAG 2.2, technique G141): one of level 1, and none is left out
// between a heading and those below it.
void check_headings(const std::string& html) {
  char above = '0';
  for (std::size_t at = 0; (at = html.find("<h", at)) != std::string::npos; at += 2) {
    const char level = html[at + 2];
    if (level < '1' || level > '6') continue;  // <head>, <html>
    CHECK_MESSAGE(level <= above + 1, html.substr(at, 60));
    above = level;
  }
  CHECK(html.find("<h1") != std::string::npos);
  CHECK(html.find("<h1") == html.rfind("<h1"));
}

// The page's body without its script, an element a line.
std::string body(const std::string& document) {
  std::string html = page(document, "made up");
  check_headings(html);
  html = html.substr(html.find("<main>"), html.find("</main>") - html.find("<main>"));
  for (std::size_t at = 0; (at = html.find("><", at)) != std::string::npos; ++at)
    if (html[at + 2] != '/') html.insert(++at, "\n");
  return html;
}

void check_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    CHECK_MESSAGE(text.find(part) != std::string::npos, std::string(part) << "\nin\n" << text);
}
void check_absent(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    CHECK_MESSAGE(text.find(part) == std::string::npos, std::string(part) << "\nin\n" << text);
}

std::string refusal(const std::string& document) {
  try {
    (void)page(document, "x.json");
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

constexpr const char* kTool = R"("tool": {"version": "1", "commit": "abc"})";

std::string comparison(const char* agrees) {
  return std::string(R"("agrees": )") + agrees + R"(,
    "levels": {"L1": {"verdict": "exact", "text": "all tensors"}},
    "ranks": [{"rank": 3,
      "categories": [{"category": "optimizer", "predicted_bytes": 1024, "measured_bytes": 2048,
                      "difference_bytes": 1024}],
      "peak": {"predicted_bytes": 4096, "measured_bytes": 4096, "difference_bytes": 0},
      "device": {"predicted_bytes": null, "measured_bytes": 8192, "difference_bytes": null}}],
    "differences_found": 1234,
    "differences": [{"kind": "bytes", "rank": 2, "where": "layers.0", "tensor": "q",
                     "predicted_bytes": 512, "measured_bytes": null},
                    {"kind": "missing", "rank": null, "where": "loss", "tensor": "p",
                     "predicted_bytes": null, "measured_bytes": 1536}],
    "notes": ["A note."])";
}

std::string measurement(const char* outcome, const std::string& more) {
  return std::string(R"({"schema": "plimsoll.measurement/1", )") + kTool +
         R"(, "workload": {"model": {"name": "tiny"}}, "outcome": ")" + outcome +
         R"(", "measured_at": "2026-01-02", )" + more + "}";
}
}  // namespace

TEST_CASE("a measurement's page has its outcome, its ranks and its steps") {
  const std::string text =
      body(measurement("completed", R"("environment": {"device": {"name": "H100"}},
       "ranks": [{"rank": 1, "peak_bytes": 1024, "resident_bytes": 2048, "reserved_bytes": 3072,
                  "device_bytes": null}],
       "steps": [{"loss": 4.0, "tokens_per_second": 100}, {"loss": null, "tokens_per_second": 150},
                 {"loss": 3.0, "tokens_per_second": 200}, {"loss": 2.0, "tokens_per_second": 125}],
       "comparison": null)"));
  // Losses at 80, 500 and 920, from the top at 30 (4.0) to the bottom at 180 (2.0).
  check_parts(text, {"<h1>Measured: tiny</h1>", "<p class=\"verdict\">Outcome: completed</p>",
                     "<p>2026-01-02, H100</p>", "<caption>Ranks</caption>",
                     "<td class=\"w\">1</td>\n<td class=\"n\">\n<data value=\"1024\"",
                     "value=\"2048\"", "value=\"3072\"", "<td class=\"n\">–</td>", "<h2>Steps</h2>",
                     "<h3>Loss</h3>", "aria-label=\"Loss: 4 at first, 2 at last\"",
                     "d=\"M80.0 30.0L500.0 105.0L920.0 180.0\"", ">4</text>", ">2</text>",
                     "<h3>Tokens per second</h3>",
                     "aria-label=\"Tokens per second: 100 at first, 125 at last\"",
                     "d=\"M80.0 180.0L360.0 105.0L640.0 30.0L920.0 142.5\""});
  check_absent(text, {"Against the prediction", "<pre>"});
}

TEST_CASE("a measurement that ended early says why, and has no picture of one step") {
  const std::string text =
      body(measurement("out_of_memory", R"("error": "no room for q", "environment": null,
       "ranks": [], "steps": [{"loss": 1.0, "tokens_per_second": 5}])"));
  check_parts(text, {"<p class=\"verdict not\">Outcome: out_of_memory</p>",
                     "<pre>no room for q</pre>", "<p>2026-01-02</p>", "<h2>Steps</h2>"});
  check_absent(text, {"Ranks", "<svg", "Loss"});
  check_absent(body(measurement("completed", R"("environment": null, "ranks": [], "steps": [])")),
               {"Steps"});
  // Two that are the same: a line at the bottom.
  check_parts(body(measurement("completed", R"("environment": null, "ranks": [],
       "steps": [{"loss": 1.5}, {"loss": 1.5}])")),
              {"d=\"M80.0 180.0L920.0 180.0\""});
}

TEST_CASE("a comparison's page has its levels, the first rank and what differs") {
  const std::string text = body(std::string(R"({"schema": "plimsoll.comparison/1", )") + kTool +
                                ", " + comparison("false") + "}");
  check_parts(
      text,
      {"<h1>Predicted against measured</h1>",
       "<p class=\"verdict not\">Prediction and measurement do not agree</p>",
       "<td class=\"w\">L1</td>\n<td class=\"w\">exact</td>\n<td class=\"w\">all tensors</td>",
       "<caption>Rank 3</caption>",
       "<td class=\"w\">optimizer</td>\n<td class=\"n\">\n<data "
       "value=\"1024\" title=\"1024 bytes\">1.00 KiB</data></td>\n<td class=\"n\">\n<data "
       "value=\"2048\"",
       "<tr class=\"total\">\n<td class=\"w\">peak</td>",
       "<td class=\"w\">device</td>\n<td "
       "class=\"n\">–</td>\n<td class=\"n\">\n<data value=\"8192\"",
       "<h2>Differences</h2>", "<caption>1,234 found</caption>",
       "<td class=\"w\">bytes</td>\n<td class=\"w\">2</td>\n<td class=\"w\">layers.0</td>\n<td "
       "class=\"w\">q</td>\n<td class=\"n\">\n<data value=\"512\"",
       "<td class=\"w\">missing</td>\n<td class=\"w\"></td>\n<td class=\"w\">loss</td>\n<td "
       "class=\"w\">p</td>\n<td class=\"n\">–</td>\n<td class=\"n\">\n<data value=\"1536\"",
       "<li>A note.</li>"});
  check_absent(text, {"<td class=\"w\">resident</td>", "<td class=\"w\">reserved</td>"});
  check_parts(body(measurement("completed", R"("environment": null, "ranks": [], "steps": [],
       "comparison": {)" + comparison("true") + "}")),
              {"<h2>Against the prediction</h2>",
               "<p class=\"verdict agrees\">Prediction and measurement agree</p>"});
  check_parts(body(std::string(R"({"schema": "plimsoll.comparison/1", )") + kTool +
                   R"(, "comparisons": [{"measurement": "a.json", )" + comparison("true") +
                   R"(}, {"measurement": "b.json", )" + comparison("false") + "}]}"),
              {"<h2>a.json</h2>", "<h2>b.json</h2>", "verdict agrees", "verdict not"});
}

TEST_CASE("a comparison's page shows fifty differences of many") {
  const auto with = [](int count) {
    std::string all;
    for (int i = 0; i < count; ++i)
      all += std::string(i == 0 ? "" : ",") + R"({"kind": "bytes", "rank": 0, "where": "w",
        "tensor": "t)" +
             std::to_string(i) + R"(", "predicted_bytes": 1, "measured_bytes": 2})";
    return body(std::string(R"({"schema": "plimsoll.comparison/1", )") + kTool +
                R"(, "agrees": false, "levels": {}, "ranks": [], "differences_found": 51,
        "differences": [)" +
                all + "]}");
  };
  check_parts(with(51), {"<td class=\"w\">t49</td>"});
  check_absent(with(51), {"<td class=\"w\">t50</td>"});
  check_absent(with(0), {"<h2>Differences</h2>"});
}

TEST_CASE("the page of models has for each way the smallest GPU, and all behind it") {
  const std::string ways = R"("ways": [{"name": "alone", "options": "--zero 0 & <x>"},
                                       {"name": "eight", "options": "--gpus 8"}], )";
  const auto models = [&](const std::string& first, const std::string& trains) {
    return body(std::string(R"({"schema": "plimsoll.models/1", )") + kTool + ", " + first +
                R"("models": [
      {"name": "dense", "parameters": 1234567, "active_parameters": 1234567, "max_positions": 2048)" +
                trains + R"(},
      {"name": "mixture", "parameters": 5000, "active_parameters": 1000, "max_positions": null}]})");
  };
  const std::string text = models(ways, R"(, "trains": [["t4", "a<b", "h100"], ["l4"]])");
  check_parts(text, {"<h1>Models, and the GPUs that train them</h1>",
                     "<td class=\"w\">alone</td>\n<td class=\"w\">\n<code>--zero 0 &amp; "
                     "&lt;x&gt;</code>",
                     "<th scope=\"col\">context</th>\n<th scope=\"col\">alone</th>\n<th "
                     "scope=\"col\">eight</th>",
                     "<td class=\"w\">dense</td>\n<td class=\"n\">1,234,567</td>\n<td "
                     "class=\"n\">all</td>\n<td class=\"n\">2,048</td>",
                     "<summary>t4 and 2 more</summary>\n<small>t4, a&lt;b, h100</small>",
                     "<td class=\"w\">l4</td>",
                     "<td class=\"w\">mixture</td>\n<td class=\"n\">5,000</td>\n<td "
                     "class=\"n\">1,000</td>\n<td class=\"n\">–</td>\n<td class=\"faint\" "
                     "colspan=\"2\">counts and model states only</td>"});
  const std::string plain = models("", "");
  check_absent(plain, {"counts and model states only", "The ways", "alone"});
  check_parts(models(ways, R"(, "trains": [[], ["l4"]])"), {"<span class=\"faint\">none</span>"});
}

TEST_CASE("the page of GPUs has for each way the largest model, and all behind it") {
  const auto gpus = [](const std::string& more) {
    return body(std::string(R"({"schema": "plimsoll.gpus/1", )") + kTool + R"(, "gpus": [
      {"name": "h100", "title": "NVIDIA H100", "cuda_total": {"bytes": 1536},
       "peak_flops": {"bf16": 989.4e12}, "memory_bytes_per_second": 3.35e12},
      {"name": "p100", "title": "Tesla", "cuda_total": {"bytes": 1024},
       "peak_flops": {"bf16": null}, "memory_bytes_per_second": 732e9}])" +
                more + "}");
  };
  const std::string text = gpus(R"(, "ways": [{"name": "alone", "options": "--zero 0"}],
       "models_of_gpus": [{"gpu": "p100", "trains": [["tiny", "vast"]]},
                          {"gpu": "h100", "trains": [["only"]]}])");
  check_parts(text, {"<h1>GPUs, and the models that they train</h1>",
                     "<td class=\"w\">h100<br>\n<small>NVIDIA H100</small>",
                     "<data value=\"1536\" title=\"1536 bytes\">1.50 KiB</data>",
                     "<td class=\"n\">989</td>\n<td class=\"n\">3,350</td>\n<td "
                     "class=\"w\">only</td>",
                     "<td class=\"n\">–</td>\n<td class=\"n\">732</td>",
                     "<summary>vast and 1 more</summary>\n<small>vast, tiny</small>"});
  check_absent(gpus(""), {"The ways", "only", "tiny"});
}

TEST_CASE("the page of a fleet has where each job fits, who goes where, and what is bought") {
  const std::string solution = R"({"placed": 3, "certainty": "proven best",
    "pools": [{"pool": "a", "owned_gpus": 16, "bought_gpus": 8, "used_gpus": 20, "cost": 1234.5},
              {"pool": "b", "owned_gpus": 4, "bought_gpus": 0, "used_gpus": 0, "cost": 0}],
    "placements": [{"job": "sft", "pool": "a", "gpus": 8, "count": 2},
                   {"job": "dpo", "pool": "a", "gpus": 4, "count": 1}],
    "left": [{"job": "pre", "count": 5}]})";
  const auto fleet = [&](const char* fits, const std::string& currency,
                         const std::string& purchase) {
    return body(std::string(R"({"schema": "plimsoll.fleet/1", )") + kTool + R"(, "fits": )" + fits +
                R"(, "verdict": "A verdict", "currency": )" + currency + R"(, "jobs_in_all": 8,
    "pools": [{"name": "a", "gpu": "a100"}, {"name": "b", "gpu": "h100"}],
    "jobs": [{"name": "sft", "count": 2, "options": [
                {"pool": "a", "gpus": 4, "possible": false, "why": "lacks 2 GiB"},
                {"pool": "a", "gpus": 8, "possible": true, "device_bytes": 1024,
                 "tokens_per_second": 12345.6, "why": null},
                {"pool": "b", "gpus": 4, "possible": false, "why": "lacks <1 GiB"}]},
             {"name": "dpo", "count": 1, "options": [
                {"pool": "a", "gpus": 1, "possible": true, "device_bytes": null,
                 "tokens_per_second": null, "why": null}]}],
    "owned": )" +
                solution + R"(, "purchase": )" + purchase + R"(, "solver": {"name": "a solver"}})");
  };
  const std::string text = fleet("false", "\"EUR\"", solution);
  check_parts(text,
              {"<p class=\"verdict borderline\">A verdict</p>",
               "<th scope=\"col\">a<br>\n<small>a100</small>", "<td class=\"w\">2 × sft</td>",
               "<b class=\"fits\">8 GPUs</b>\n<br>\n<data value=\"1024\" title=\"1024 bytes\">1.00 "
               "KiB</data>\n<br>12,346 tokens/s",
               "<span class=\"not\">no</span>\n<br>\n<small>lacks &lt;1 GiB</small>",
               "<td class=\"w\">dpo</td>", "<b class=\"fits\">1 GPU</b></td>",
               "<span class=\"faint\">not asked</span>", "<h2>On what is there</h2>",
               "<p>3 of 8 jobs have a place (proven best).</p>",
               "<td class=\"n\">16</td>\n<td class=\"n\">8</td>\n<td class=\"n\">20</td>\n<td "
               "class=\"n\">1234.50 EUR</td>\n<td class=\"w\">2 × sft on 8, 1 × dpo on 4</td>",
               "<td class=\"n\">0</td>\n<td class=\"n\">–</td>\n<td class=\"w\"></td>",
               "<li>without a place: 5 × pre</li>", "<h2>With what is to be bought</h2>",
               "<p class=\"faint\">Assigned by a solver, whole nodes considered.</p>"});
  const std::string owned = fleet("true", "null", "null");
  check_parts(owned, {"<p class=\"verdict fits\">A verdict</p>", "<td class=\"n\">1234.50</td>"});
  check_absent(owned, {"With what is to be bought"});
  check_parts(fleet("false", "null", "null"), {"<p class=\"verdict not\">A verdict</p>"});
}

TEST_CASE("a page is made of what there are pages of, and of nothing else") {
  CHECK(refusal("{}").starts_with("x.json: a document without a schema; a page is made of a plan"));
  CHECK(refusal("[1]").starts_with("x.json: a document without a schema;"));
  CHECK(refusal(R"({"schema": "plimsoll.oom/1"})")
            .starts_with("x.json: a document of schema plimsoll.oom/1;"));
  const std::string name(61, 's');
  CHECK(refusal("{\"schema\": \"" + name + "\"}")
            .starts_with("x.json: a document of schema " + std::string(57, 's') + "...;"));
  CHECK(refusal(R"({"schema": "plimsoll.models/1"})")
            .starts_with("x.json: not as plimsoll.models/1 says: "));
  const std::string catalog =
      page(std::string(R"({"schema": "plimsoll.models/1", "model": "m", )") + kTool +
               R"(, "models": []})",
           "x.json");
  CHECK(catalog.find("<title>plimsoll: m</title>") != std::string::npos);
  CHECK(catalog.find("<footer>plimsoll.models/1 · plimsoll 1 (abc)</footer>") != std::string::npos);
}
