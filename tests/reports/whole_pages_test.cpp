// Whole pages of made-up answers: what stands in which element, without style, script and drawing.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "reports/page/page.h"
#include "reports/recommendation.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

// Without what stands between `open` and `close`, wherever it does.
std::string without(std::string text, std::string_view open, std::string_view close) {
  for (std::size_t at = 0; (at = text.find(open, at)) != std::string::npos;)
    text.erase(at, text.find(close, at) + close.size() - at);
  return text;
}

// The body of a document's page, a row or a paragraph a line.
template <class Write>
std::string body(Write write) {
  std::string document;
  JsonWriter json(document, JsonWriter::Style::compact);
  write(json);
  std::string html = page(document, "made up");
  html = html.substr(html.find("<body"));
  html = without(without(html, "<script", "</script>"), "<svg xmlns", "</svg>");
  for (const std::string_view element : {"<circle", "<text", "<tr", "<p", "<h", "<caption", "<li",
                                         "<figure", "<table", "<footer", "<ul", "<details"})
    for (std::size_t at = 1; (at = html.find(element, at)) != std::string::npos; at += 2)
      if (html[at - 1] == '>') html.insert(at++, "\n");
  return html;
}

Recommendation recommendation() {
  Recommendation answer = made_up_recommendation();
  answer.front = {{.peak = 10_GiB,
                   .device = 11_GiB,
                   .tokens_per_second = 1000.25,
                   .strategy = made_up_plan().strategy,
                   .batch = made_up_plan().batch,
                   .options = "--zero 3"}};
  answer.front.push_back(answer.front[0]);
  answer.front[1].peak = 20_GiB;
  answer.front[1].device = 22_GiB;
  answer.front[1].tokens_per_second.reset();
  answer.front[1].options = "--zero 2";
  answer.notes = {"A note."};
  return answer;
}

constexpr const char* kPlanPage = R"--(<body>
<main>
<h1>tiny-llama</h1>
<p class="verdict fits">Fits: 43.0 GiB needed on each device, 78.0 GiB usable</p>
<p>LlamaForCausalLM, 1,000,000 parameters</p>
<p>8 × NVIDIA H100 SXM 80GB · pytorch FSDP2 full shard · bf16-mixed · adamw</p>
<p>sequence 8192 · micro-batch 2 · accumulation 4 · recompute none · flash attention · full loss</p>
<h2>Memory over one step</h2>
<figure tabindex="0" data-points="64 700 56 340" data-names="parameters,gradients,optimizer,activations,logits,temporaries,communication,workspace">
<div class="picture">
</div>
<p class="at" aria-live="polite">Point at the picture, or use the arrow keys, to read each moment.</p>
</figure>
<h2>Where it goes</h2>
<div class="wide" tabindex="0">
<table>
<caption>At the peak</caption><thead>
<tr><th scope="col">category</th><th class="n" scope="col">bytes</th><th class="n" scope="col">share</th><th scope="col"></th></tr></thead>
<tbody>
<tr><td class="w"><span class="key" style="background:#0072b2"></span>parameters</td><td class="n"><data value="4294967296" title="4294967296 bytes">4.00 GiB</data></td><td class="n">10.0 %</td><td class="w"><span class="bar"><i style="width:10.00%;background:#0072b2" title=""></i></span></td></tr>
<tr><td class="w"><span class="key" style="background:#e69f00"></span>gradients</td><td class="n"><data value="4294967296" title="4294967296 bytes">4.00 GiB</data></td><td class="n">10.0 %</td><td class="w"><span class="bar"><i style="width:10.00%;background:#e69f00" title=""></i></span></td></tr>
<tr><td class="w"><span class="key" style="background:#56b4e9"></span>optimizer</td><td class="n"><data value="8589934592" title="8589934592 bytes">8.00 GiB</data></td><td class="n">20.0 %</td><td class="w"><span class="bar"><i style="width:20.00%;background:#56b4e9" title=""></i></span></td></tr>
<tr><td class="w"><span class="key" style="background:#009e73"></span>activations</td><td class="n"><data value="21474836480" title="21474836480 bytes">20.0 GiB</data></td><td class="n">50.0 %</td><td class="w"><span class="bar"><i style="width:50.00%;background:#009e73" title=""></i></span></td></tr>
<tr><td class="w"><span class="key" style="background:#cc79a7"></span>logits</td><td class="n"><data value="2147483648" title="2147483648 bytes">2.00 GiB</data></td><td class="n">5.0 %</td><td class="w"><span class="bar"><i style="width:5.00%;background:#cc79a7" title=""></i></span></td></tr>
<tr><td class="w"><span class="key" style="background:#d55e00"></span>temporaries</td><td class="n"><data value="1073741824" title="1073741824 bytes">1.00 GiB</data></td><td class="n">2.5 %</td><td class="w"><span class="bar"><i style="width:2.50%;background:#d55e00" title=""></i></span></td></tr>
<tr><td class="w"><span class="key" style="background:#f0e442"></span>communication</td><td class="n"><data value="1073741824" title="1073741824 bytes">1.00 GiB</data></td><td class="n">2.5 %</td><td class="w"><span class="bar"><i style="width:2.50%;background:#f0e442" title=""></i></span></td></tr>
<tr class="total"><td class="w">together</td><td class="n"><data value="42949672960" title="42949672960 bytes">40.0 GiB</data></td><td class="n">100.0 %</td><td class="w"></td></tr>
</tbody></table></div>
<div class="wide" tabindex="0">
<table>
<caption>On each device</caption><thead>
<tr><th scope="col"></th><th class="n" scope="col">bytes</th><th scope="col">what it is</th></tr></thead>
<tbody>
<tr><td class="w">peak</td><td class="n"><data value="42949672960" title="42949672960 bytes">40.0 GiB</data></td><td class="w">allocated at once (max_memory_allocated)</td></tr>
<tr><td class="w">between steps</td><td class="n"><data value="17179869184" title="17179869184 bytes">16.0 GiB</data></td><td class="w">stays allocated</td></tr>
<tr><td class="w">reserved</td><td class="n"><data value="45097156608" title="45097156608 bytes">42.0 GiB</data></td><td class="w">by the allocator, with its rounding and gaps</td></tr>
<tr><td class="w">context</td><td class="n"><data value="536870912" title="536870912 bytes">512 MiB</data></td><td class="w">the driver's, and loaded kernels</td></tr>
<tr><td class="w">libraries</td><td class="n"><data value="268435456" title="268435456 bytes">256 MiB</data></td><td class="w">outside the allocator</td></tr>
<tr><td class="w">NCCL</td><td class="n"><data value="268435456" title="268435456 bytes">256 MiB</data></td><td class="w">communicators' buffers</td></tr>
<tr class="total"><td class="w">device</td><td class="n"><data value="46170898432" title="46170898432 bytes">43.0 GiB</data></td><td class="w">reserved and all outside it, as nvidia-smi counts</td></tr>
<tr><td class="w">usable</td><td class="n"><data value="83751862272" title="83751862272 bytes">78.0 GiB</data></td><td class="w">of the card</td></tr>
</tbody></table></div>
<h2>What would help, cheapest first</h2>
<div class="wide" tabindex="0">
<table>
<caption>The red mark is the usable memory.</caption><thead>
<tr><th scope="col">change</th><th class="n" scope="col">saves</th><th class="n" scope="col">needed then</th><th scope="col"></th><th scope="col"></th></tr></thead>
<tbody>
<tr><td class="w"><code>--recompute full</code></td><td class="n"><data value="3221225472" title="3221225472 bytes">3.00 GiB</data></td><td class="n"><data value="42949672960" title="42949672960 bytes">40.0 GiB</data></td><td class="w"><span class="bar"><i style="width:51.28%;background:var(--bar)" title=""></i></span></td><td class="w"></td></tr>
</tbody></table></div>
<h2>The largest tensors at the peak</h2>
<div class="wide" tabindex="0">
<table><thead>
<tr><th scope="col">tensor</th><th scope="col">category</th><th class="n" scope="col">bytes each</th><th class="n" scope="col">times</th><th scope="col">born</th><th scope="col">dies</th></tr></thead>
<tbody>
<tr><td class="w"><span class="name">layers.<wbr>*.<wbr>attn.<wbr>q</span></td><td class="w"><span class="name">activations</span></td><td class="n"><data value="1048576" title="1048576 bytes">1.00 MiB</data></td><td class="n">32</td><td class="w"><span class="name">forward</span></td><td class="w"><span class="name">backward</span></td></tr>
</tbody></table></div>
<h2>Time</h2>
<p>2 s a step, 262,144 tokens/s, MFU 40.0 %, HFU 50.0 %</p>
<div class="wide" tabindex="0">
<table><thead>
<tr><th scope="col">part of the step</th><th class="n" scope="col">seconds</th><th class="n" scope="col">share</th><th scope="col"></th></tr></thead>
<tbody>
<tr><td class="w">compute</td><td class="n">1.5</td><td class="n">75.0 %</td><td class="w"><span class="bar"><i style="width:75.00%;background:var(--bar)" title=""></i></span></td></tr>
<tr><td class="w">communication not hidden</td><td class="n">0.4</td><td class="n">20.0 %</td><td class="w"><span class="bar"><i style="width:20.00%;background:var(--bar)" title=""></i></span></td></tr>
<tr><td class="w">optimizer</td><td class="n">0.1</td><td class="n">5.0 %</td><td class="w"><span class="bar"><i style="width:5.00%;background:var(--bar)" title=""></i></span></td></tr>
</tbody></table></div>
<h2>Notes</h2>
<ul>
<li>Nothing to add.</li>
</ul>
<h2>Assumptions</h2>
<details><summary>Derived, calibrated and assumed figures, with their sources</summary>
<div class="wide" tabindex="0">
<table><thead>
<tr><th scope="col">what</th><th scope="col">value</th><th scope="col">basis</th><th scope="col">source</th></tr></thead>
<tbody>
<tr><td class="w">CUDA context</td><td class="w">536870912</td><td class="w">assumed</td><td class="w">a page</td></tr>
</tbody></table></div>
</details>
</main>
<footer>plimsoll.plan/1 · plimsoll 1 (abc)</footer>
</body></html>
)--";

}  // namespace

TEST_CASE("the page of a plan, from the first element to the last") {
  CHECK(body([](JsonWriter& json) {
          Plan plan = made_up_plan();
          plan.fingerprint.clear();
          plan.remedies = {{.option = "--recompute full", .saves = 3_GiB, .device = 40_GiB}};
          write_plan(json, plan, {.version = "1", .commit = "abc"});
        }) == kPlanPage);
}

// Of 78 GiB that are usable and 100 that would be needed without sharding: 43 are 43 %, the other
// 57 what it saves; the mark is at 78 %. Of what is not used, one saves 3 of the 43, one less than
// half a per cent.
TEST_CASE("the page says what each technique saves, what costs, and what cannot be planned") {
  Plan plan = made_up_plan();
  plan.fingerprint.clear();
  plan.savings = {
      {.used = true,
       .option = "--zero 3",
       .instead = "--zero 0",
       .planned = Saving::Planned{90_GiB, 100_GiB, 50_GiB, 57_GiB, false}},
      {.used = true,
       .option = "--quantize nf4",
       .instead = "a base in 16 bits",
       .planned = Saving::Planned{39_GiB, 42_GiB, Bytes(0) - 1_GiB, Bytes(0) - 1_GiB, true}},
      {.used = true,
       .option = "--attention flash",
       .instead = "--attention eager",
       .refusal = "<not> modelled"},
      {.option = "--loss chunked",
       .concession = "a word",
       .planned = Saving::Planned{38_GiB, 40_GiB, 2_GiB, 3_GiB, true}},
      {.option = "--zero 4", .planned = Saving::Planned{40_GiB, 43_GiB, 0_B, 0_B, true}}};
  std::string found =
      body([&](JsonWriter& json) { write_plan(json, plan, {.version = "1", .commit = "abc"}); });
  found = found.substr(found.find("<h2>What each"));
  found = found.substr(0, found.find("\n<h2>The largest"));
  CHECK(found == R"--(<h2>What each technique saves</h2>
<p class="faint">Device memory: the same workload was planned again without each, all else as it is, so they do not add up. The red mark is what is usable.</p>
<div class="wide" tabindex="0">
<table><thead>
<tr><th scope="col">technique</th><th class="n" scope="col">saves</th><th scope="col"></th><th class="n" scope="col">peak without</th><th class="n" scope="col">device without</th><th scope="col"></th></tr></thead>
<tbody>
<tr><td class="w"><span class="what"><code>--zero 3</code><br><small>without it: --zero 0</small></span></td><td class="n"><data value="61203283968" title="61203283968 bytes">57.0 GiB</data></td><td class="w"><span class="bar"><i style="width:43.00%;background:var(--bar)" title=""></i><i style="width:57.00%;background:var(--saved)" title="saved"></i><b style="left:78.00%"></b></span></td><td class="n"><data value="96636764160" title="96636764160 bytes">90.0 GiB</data></td><td class="n"><data value="107374182400" title="107374182400 bytes">100 GiB</data></td><td class="w"><span class="verdict not">would not fit</span></td></tr>
<tr><td class="w"><span class="what"><code>--quantize nf4</code><br><small>without it: a base in 16 bits</small></span></td><td class="n">costs <data value="1073741824" title="1073741824 bytes">1.00 GiB</data></td><td class="w"><span class="bar"><i style="width:42.00%;background:var(--bar)" title=""></i><b style="left:78.00%"></b></span></td><td class="n"><data value="41875931136" title="41875931136 bytes">39.0 GiB</data></td><td class="n"><data value="45097156608" title="45097156608 bytes">42.0 GiB</data></td><td class="w"></td></tr>
<tr><td class="w"><span class="what"><code>--attention flash</code><br><small>without it: --attention eager</small></span></td><td class="w"></td><td class="w">not planned: &lt;not&gt; modelled</td><td class="w"></td><td class="w"></td><td class="w"></td></tr>
</tbody></table></div>
<h2>What would save more, with the same result</h2>
<p class="faint">Planned again with each. Model, batch and what is computed stay as they are; time may not.</p>
<div class="wide" tabindex="0">
<table><thead>
<tr><th scope="col">option</th><th class="n" scope="col">saves</th><th scope="col"></th><th class="n" scope="col">peak then</th><th class="n" scope="col">device then</th><th scope="col"></th></tr></thead>
<tbody>
<tr><td class="w"><span class="what"><code>--loss chunked</code><br><small>a word</small></span></td><td class="n"><data value="3221225472" title="3221225472 bytes">3.00 GiB</data></td><td class="w"><span class="bar"><i style="width:51.28%;background:var(--bar)" title=""></i><i style="width:3.85%;background:var(--saved)" title="saved"></i></span></td><td class="n"><data value="40802189312" title="40802189312 bytes">38.0 GiB</data></td><td class="n"><data value="42949672960" title="42949672960 bytes">40.0 GiB</data></td><td class="w"></td></tr>
</tbody></table></div>
<p class="faint">Would save nothing here: --zero 4.</p>)--");
}

// The least memory at half the width / 1.02: 80 + 840 / 2 / 1.02 = 491.8; the fastest at 16 + 260
// (1 - 1 / 1.05) = 28.4. A plan whose speed nobody knows has no place in the picture.
TEST_CASE("the page of a recommendation, from the first element to the last") {
  // What the page of a plan has too is read there.
  CHECK(without(body([](JsonWriter& json) {
                  write_recommendation(json, recommendation(), {.version = "1", .commit = "abc"});
                }),
                "<h3>Memory over one step", "</details>\n") ==
        R"--(<body>
<main>
<h1>How to run tiny-llama</h1>
<p class="verdict fits">Fits: 43.0 GiB needed on each device, 78.0 GiB usable</p>
<pre>plimsoll fit tiny-llama --gpus 8 --zero 3</pre>
<h2>The plans, best first</h2>
<div class="wide" tabindex="0">
<table><thead>
<tr><th class="n" scope="col">#</th><th scope="col">strategy</th><th class="n" scope="col">GPUs</th><th scope="col">recompute</th><th class="n" scope="col">batch</th><th class="n" scope="col">device</th><th class="n" scope="col">free</th><th class="n" scope="col">tokens/s</th><th class="n" scope="col">MFU</th></tr></thead>
<tbody>
<tr><td class="n">1</td><td class="w">pytorch FSDP2 full shard, bf16-mixed</td><td class="n">8</td><td class="w">none</td><td class="n">2 × 4</td><td class="n"><data value="46170898432" title="46170898432 bytes">43.0 GiB</data></td><td class="n"><data value="37580963840" title="37580963840 bytes">35.0 GiB</data></td><td class="n">262,144</td><td class="n">40.0 %</td></tr>
</tbody></table></div>
<h2>Why the first</h2>
<ul>
<li>One reason.</li>
</ul>
<h2>Memory against speed</h2>
<div class="picture"><svg viewBox="0 0 960 330" role="img" aria-label="tokens per second over device memory"><style>.axis{stroke:var(--line)}.dot{fill:var(--bar)}svg text{font:13px system-ui,sans-serif;fill:var(--fg)}</style>
<path class="axis" fill="none" d="M80 16v260h840"/>
<circle class="dot" cx="491.8" cy="28.4" r="4"><title>11.0 GiB, 1,000 tokens/s: --zero 3</title></circle>
<text x="74" y="32.4" text-anchor="end">1,000</text>
<text x="80" y="294">0</text>
<text x="920" y="294" text-anchor="end">22.0 GiB on each device</text>
<text x="74" y="274" text-anchor="end">tokens/s</text></svg></div>
<details><summary>The points as a table</summary>
<div class="wide" tabindex="0">
<table><thead>
<tr><th class="n" scope="col">least device memory</th><th class="n" scope="col">tokens/s</th><th scope="col">options</th></tr></thead>
<tbody>
<tr><td class="n"><data value="11811160064" title="11811160064 bytes">11.0 GiB</data></td><td class="n">1,000</td><td class="w"><code>--zero 3</code></td></tr>
<tr><td class="n"><data value="23622320128" title="23622320128 bytes">22.0 GiB</data></td><td class="n">not known</td><td class="w"><code>--zero 2</code></td></tr>
</tbody></table></div>
</details>
<h2>The first plan</h2>
<p>LlamaForCausalLM, 1,000,000 parameters</p>
<p>8 × NVIDIA H100 SXM 80GB · pytorch FSDP2 full shard · bf16-mixed · adamw</p>
<p>sequence 8192 · micro-batch 2 · accumulation 4 · recompute none · flash attention · full loss</p>
</main>
<footer>plimsoll.recommendation/1 · plimsoll 1 (abc)</footer>
</body></html>
)--");
}

// 5 GiB short.
TEST_CASE("the page where nothing fits says by how much, what would fit, and the closest plan") {
  const auto page_of = [](std::vector<Change> changes) {
    Recommendation answer = recommendation();
    answer.nothing_fits =
        NothingFits{.closest = answer.ranked[0], .shortfall = 5_GiB, .would_fit = changes};
    answer.ranked.clear();
    answer.front.clear();
    const std::string text = body([&](JsonWriter& json) {
      write_recommendation(json, answer, {.version = "1", .commit = "abc"});
    });
    return text.substr(0, text.find("<p>LlamaForCausalLM"));
  };
  const std::string begin = R"--(<body>
<main>
<h1>How to run tiny-llama</h1>
<p class="verdict not">Nothing fits</p>
<p>The closest plan lacks 5.00 GiB on each device.</p>
)--",
                    end = "<h2>The closest plan</h2>\n";
  CHECK(page_of({{"--gpus 16", "plimsoll fit tiny-llama --gpus 16", 20_GiB}}) ==
        begin + R"--(<h2>What would fit</h2>
<h3>--gpus 16</h3>
<pre>plimsoll fit tiny-llama --gpus 16</pre>
)--" + end);
  CHECK(page_of({}) == begin + end);
}

// Of 40 GiB at the highest peak 10 are a quarter; a category that is nothing has no bar, and no
// row.
TEST_CASE("kinds of ranks have a row each, with bars of what their peaks hold") {
  Plan plan = made_up_plan();
  plan.at_peak = {30_GiB, 0_B, 10_GiB, 0_B, 0_B, 0_B, 0_B, 0_B};
  plan.ranks = {{.rank = 0, .count = 1, .peak = 40_GiB, .at_peak = plan.at_peak},
                {.rank = 1, .count = 7, .peak = 10_GiB, .at_peak = {0_B, 10_GiB}}};
  const std::string text =
      body([&](JsonWriter& json) { write_plan(json, plan, {.version = "1", .commit = "abc"}); });
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(has("<h2>Ranks</h2>"));
  CHECK(
      has("<tr><td class=\"w\">0</td><td class=\"n\">1</td><td class=\"n\"><data "
          "value=\"42949672960\" title=\"42949672960 bytes\">40.0 GiB</data></td><td "
          "class=\"w\"><span class=\"bar\"><i style=\"width:75.00%;background:#0072b2\" "
          "title=\"parameters 30.0 GiB\"></i><i style=\"width:25.00%;background:#56b4e9\" "
          "title=\"optimizer 10.0 GiB\"></i></span></td></tr>"));
  CHECK(
      has("<td class=\"n\">7</td><td class=\"n\"><data value=\"10737418240\" "
          "title=\"10737418240 bytes\">10.0 GiB</data></td><td class=\"w\"><span "
          "class=\"bar\"><i style=\"width:25.00%;background:#e69f00\" title=\"gradients 10.0 "
          "GiB\"></i></span></td></tr>"));
  CHECK(has("parameters</td>"));
  CHECK_FALSE(has("gradients</td>"));
  CHECK_FALSE(has("logits</td>"));
}

TEST_CASE("twenty of the tensors at the peak are shown, the largest first, equal ones together") {
  Plan plan = made_up_plan();
  plan.tensors.clear();
  for (std::int64_t i = 0; i < 22; ++i)
    plan.tensors.push_back({.name = "t" + std::to_string(i),
                            .category = "activations",
                            .bytes = Bytes(100 - i),
                            .repeat = i == 21 ? 2 : 1,  // 158 in all: the most
                            .at_peak = i != 3});
  const std::string text =
      body([&](JsonWriter& json) { write_plan(json, plan, {.version = "1", .commit = "abc"}); });
  const auto at = [&](int i) { return text.find(">t" + std::to_string(i) + "<"); };
  CHECK(at(21) < at(0));
  CHECK(at(0) < at(1));
  CHECK(at(3) == std::string::npos);
  CHECK(at(19) != std::string::npos);  // the twentieth
  CHECK(at(20) == std::string::npos);
}

TEST_CASE("a tensor without its bytes is refused by what is missing, whatever it is sorted with") {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_plan(json, made_up_plan(), {});
  auto document = nlohmann::ordered_json::parse(text);
  document["tensors"] = {{{"name", "layers.0.out"}, {"at_peak", true}},
                         {{"name", "logits"}, {"at_peak", true}, {"bytes", 1024}}};
  std::string refusal;
  try {
    (void)page(document.dump(), "x.json");
  } catch (const Error& error) {
    refusal = error.message();
  }
  CHECK(refusal.starts_with("x.json: not as plimsoll.plan/1 says: "));
  CHECK(refusal.ends_with("key 'bytes' not found"));
}
