// reports/memory_accuracy.md: what plans make of published memory of real runs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/run_names.h"
#include "models/storages.h"
#include "tests/planner/published_memory.h"

namespace plimsoll::tests {

namespace {

using Rows = std::vector<const MemoryRow*>;

template <class Which>
Rows where(const MemoryRows& all, Which which) {
  Rows rows;
  for (const MemoryRow& row : all.rows())
    if (which(row)) rows.push_back(&row);
  return rows;
}

// Sizes of errors, smallest first.
template <class Error>
std::vector<double> sizes(const Rows& rows, Error error) {
  std::vector<double> out;
  for (const MemoryRow* row : rows)
    if (const std::optional<double> e = error(*row)) out.push_back(std::abs(*e));
  std::sort(out.begin(), out.end());
  return out;
}

template <class Error>
std::string summary_line(const std::string& name, const Rows& rows, Error error, int digits) {
  const std::vector<double> e = sizes(rows, error);
  if (e.empty()) return "";
  const std::size_t n = e.size();
  return fmt::format("| {} | {} | {:.{}f} % | {:.{}f} % |\n", name, n,
                     50 * (e[(n - 1) / 2] + e[n / 2]), digits, 100 * e.back(), digits);
}

std::string summary(const MemoryRows& all) {
  const auto peak = [](const MemoryRow& row) { return row.peak_error(); };
  const auto device = [](const MemoryRow& row) { return row.device_error(); };
  const auto one = [](const MemoryRow& row) { return row.plan->strategy.gpus == 1; };
  const auto lora = [](const MemoryRow& row) { return row.plan->strategy.lora.has_value(); };
  std::string text =
      "| figure, runs | count | median error | largest |\n| --- | --: | --: | --: |\n";
  text += summary_line("peak allocated, all", where(all, [](const MemoryRow&) { return true; }),
                       peak, 3);
  text += summary_line("peak allocated, one GPU, all parameters",
                       where(all, [&](const MemoryRow& r) { return one(r) && !lora(r); }), peak, 3);
  text += summary_line("peak allocated, one GPU, LoRA",
                       where(all, [&](const MemoryRow& r) { return one(r) && lora(r); }), peak, 3);
  text +=
      summary_line("peak allocated, FSDP, all parameters",
                   where(all, [&](const MemoryRow& r) { return !one(r) && !lora(r); }), peak, 3);
  text += summary_line("peak allocated, FSDP, LoRA",
                       where(all, [&](const MemoryRow& r) { return !one(r) && lora(r); }), peak, 3);
  text += summary_line(
      "peak allocated, packed base",
      where(all, [](const MemoryRow& r) { return r.plan->strategy.quantize.has_value(); }), peak,
      3);
  text += summary_line("peak allocated, GPTQ",
                       where(all,
                             [](const MemoryRow& r) {
                               const auto& packed = r.plan->strategy.quantize;
                               return packed && packed->storage->grouped;
                             }),
                       peak, 3);
  text += summary_line("nvidia-smi, the plan's kernels",
                       where(all, [](const MemoryRow& r) { return same_kernels(r); }), device, 1);
  text += summary_line("nvidia-smi, other kernels",
                       where(all, [](const MemoryRow& r) { return !same_kernels(r); }), device, 1);
  return text;
}

std::string how(const models::Strategy& s) {
  const bool deepspeed = s.stack == models::Stack::deepspeed;
  std::string text = s.gpus == 1 ? "1 GPU" : fmt::format("{} GPUs", s.gpus);
  if (deepspeed)
    text += fmt::format(", DeepSpeed ZeRO-{}", s.data.zero);
  else if (s.gpus > 1)
    text += ", FSDP";
  text += fmt::format(", {}", models::name_of(s.precision));
  if (s.quantize) text += fmt::format(", {}", s.quantize->storage->name);
  if (s.lora && s.lora->kind == models::AdapterKind::lora)
    text += fmt::format(", LoRA {}", s.lora->rank);
  else if (s.lora)
    text += fmt::format(", {}", models::name_of(s.lora->kind));
  if (s.loss != models::Loss::full) text += fmt::format(", {} loss", models::name_of(s.loss));
  return text;
}

std::string planned_device(const MemoryRow& row) {
  return fmt::format("{}{}", row.planned_device().value() / (1 << 20),
                     row.plan->flushing ? fmt::format(" (flushing; {} without)",
                                                      row.plan->device.value() / (1 << 20))
                                        : "");
}

std::string row_line(const MemoryRow& row) {
  const auto published = [&](const std::optional<Bytes>& bytes, std::int64_t unit) {
    return bytes ? fmt::format("{}", bytes->value() / unit) : std::string("–");
  };
  const auto error = [](const std::optional<double>& e, int digits) {
    return e ? fmt::format("{:+.{}f} %", 100 * *e, digits) : std::string("–");
  };
  constexpr std::int64_t mebi = 1 << 20;
  std::string text =
      fmt::format("| {} | {} | {} | {} | {} | {} | ", row.id, row.model, how(row.plan->strategy),
                  row.plan->batch.micro_batch, row.ran_kernels,
                  row.transformers.empty() ? "not stated" : row.transformers);
  if (row.out_of_memory)
    return text + fmt::format("out of memory | {} | – | – | – | – |\n",
                              row.plan->verdict == reports::Verdict::does_not_fit ? "does not fit"
                                                                                  : "fits");
  return text + fmt::format("{} | {} | {} | {} | {} | {} |\n", published(row.peak, 1),
                            row.peak_error() ? fmt::format("{}", row.plan->peak.value()) : "–",
                            error(row.peak_error(), 4), published(row.device, mebi),
                            row.device_error() ? planned_device(row) : "–",
                            error(row.device_error(), 1));
}

// Rows that state what the allocator reserved.
std::string reserved_table(const MemoryRows& all) {
  std::string text =
      "## Reserved\n\n| row | model | how | published MiB | planned | error |\n"
      "| --- | --- | --- | --: | --: | --: |\n";
  for (const MemoryRow& row : all.rows())
    if (const std::optional<double> error = row.reserved_error())
      text += fmt::format("| {} | {} | {} | {} | {} | {:+.2f} % |\n", row.id, row.model,
                          how(row.plan->strategy), row.reserved->value() >> 20,
                          row.planned_reserved().value() >> 20, 100 * *error);
  return text +
         "\n* torchtitan compiles each layer by itself (`--compile`), here inside its own "
         "checkpoints by op and FSDP2. The\n  published figures are those of the table's date, "
         "PyTorch's nightly of 2.6; the plan is of torch 2.11, and nothing of it\n  was fitted on "
         "them. Their steps are planned 16 to 18 % too fast.\n"
         "* torchtitan of March 2024 (pull request 165): its peaks agree within 0.01 %, and so "
         "does "
         "its own code on the dry runtime,\n  which reserves 29.3 and 57.1 GiB of torch 2.11 "
         "where 31.0 and 59.4 are published of a nightly of 2.4: what that one's\n  FSDP2 or its "
         "timing took more was not found.\n"
         "* fsdp_qlora: its train.py run on the dry runtime (torch 2.4.1, Transformers 4.45.2) "
         "reserves 10.23, 10.23 and 16.32 GiB where\n  10.24, 10.22 and 16.14 are published, and "
         "is planned within 0.1 % of its peaks. Peaks of LoRA are 0.7 % too low: Llama of\n  4.38 "
         "has tables of the rotation in each layer. fsdpqlora-02: train.py casts buffers too, so "
         "that the "
         "embedding is sent\n  with the frequencies of the rotation, as a block of 252 MiB, where "
         "alone "
         "it is none. fsdpqlora-00 reserved 0.4 GiB more, 3.72 GiB "
         "already when it was wrapped: the\n  same program reserves 3.39 GiB there, of torch 2.2.2 "
         "and Transformers 4.38.2, too. Why Llama-2-70B with parameters in host\n  memory took 2.5 "
         "GiB more was not found: of four of its layers the planned peak is exact,\n  reserved "
         "bytes 2.2 % low.\n"
         "* fsdpqlora-oom1 failed with \"some extra memory in gpu:0\", as its file says, which "
         "loading left: its step is planned to fit.\n\n";
}

// Rows that bound what they publish.
std::string bounds_table(const MemoryRows& all) {
  std::string text;
  for (const MemoryRow& row : all.rows())
    for (const tools::PublishedFigure& figure : tools::published_figures())
      if (const std::optional<bool> holds = tools::bound_holds(row, figure))
        text +=
            fmt::format("| {} | {} | {} | {} | {:.0f} | {:.0f} | {} |\n", row.id, row.model,
                        how(row.plan->strategy), figure.name, *figure.published(row) / (1 << 20),
                        figure.planned(row) / (1 << 20), *holds ? "holds" : "does not hold");
  if (text.empty()) return "";
  return "## Bounds\n\nSequences of these runs are no longer than is asked, and mostly shorter: "
         "their figure must not be above the plan's.\n\n"
         "| row | model | how | figure | published MiB | planned | |\n"
         "| --- | --- | --- | --- | --: | --: | --- |\n" +
         text +
         "\n* The loop of PEFT's comparison keeps outputs and with them a cache of keys and values "
         "(`use_cache` of the\n  configuration) until the next step's are there, which is not "
         "planned. Where all parameters are trained the run took\n  0.8 GiB more than is planned "
         "of the longest batch: lengths that vary, and that cache.\n\n";
}

constexpr const char* kTitle = "# How near planned memory comes to real runs\n\n";

constexpr const char* kHead =
    "\n`plimsoll compare --published` asks every row again and says the same; `--svg FILE` draws "
    "them.\n\n"
    "![Planned against published](pictures/published.svg)\n\n"
    "Written by `build/tests/planner/memory_accuracy`; a test compares this page with what that "
    "program writes.\nPublished `torch.cuda.max_memory_allocated` and nvidia-smi figures of "
    "training "
    "(on A100 where nothing else is said) against `plimsoll fit\n--stack pytorch --torch-version "
    "--transformers-version` "
    "of the row, asked with what the source states. Error is\nplanned / published − 1. No number "
    "was fitted on these rows; what older Transformers and PyTorch do differently was read off\n"
    "their sources, and seen in runs of PyTorch 2.4.1 that compute nothing, after the rows had "
    "shown that it matters, and two\nchoices are the rows' own (below): vocabularies, and the "
    "dtype of fused adapters under FSDP. The runs of source 1 used\ntorch 2.4.1, which its "
    "requirements pin, and FlashAttention-2.\n\n";

constexpr const char* kReading =
    "## What to make of it\n\n"
    "* Every run recomputes layer by layer. Some had kernels replaced: FOAK (fms-acceleration's "
    "norms, rotary embedding\n  and cross-entropy, planned as `--kernels fused`), alone or with "
    "Liger's fused linear cross-entropy. Its cross-entropy\n  writes the gradient over the "
    "logits.\n"
    "* Runs called the flash_attn package (`--attention flash-2`), which reads grouped keys and "
    "values and needs no mask, and\n  their checkpoints are reentrant (`--use-reentrant yes`), "
    "which make a layer's output too. Asked without these two, runs\n  whose peak is in a layer "
    "were 0.3 to 1.7 % too high; with them all but PowerLM's and those of packed bases\n  agree "
    "within 0.003 %.\n"
    "* The release matters: with LoRA and the whole loss, Mistral's two rows on one GPU would be "
    "planned 4.4 % and 6.1 %\n  too low as Transformers 5.17; 4.48 copies the logits once more to "
    "shift them.\n"
    "* santacoder is a GPT-BigCode: its own loss of 4.45 reads logits in 16 bits as they are, and "
    "its "
    "layers return keys and\n  values although they train, views of each whole projection, which "
    "live until the outputs go. Asked without the two,\n  it would be 12 to 20 % off where the "
    "loss is the peak; with them all rows agree within 0.1 %. The cache is planned as one "
    "block behind the last layer, so that\n  its gaps are missing: nvidia-smi is 2 to 20 % too "
    "low.\n  Over NF4 its projections are fp32 (bitsandbytes returns its input's dtype), and "
    "under autocast Accelerate copies\n  what the model returns in 16 bits to fp32 while it is "
    "there, which is the peak: planned so two rows agree within\n  0.18 %. Runs of the same "
    "packages "
    "that compute nothing differ from the plan by 24 MB of blocks that are not worth\n  splitting "
    "off, which stay, and by nothing else.\n"
    "* PowerLM-3b is a Granite model: its scaled embedding is a copy that the first layer keeps "
    "beside the embedding itself.\n  Under FSDP1 its rows without a packed base are 0.1 to 0.5 % "
    "too high: 28 to 40 MB of blocks that are not worth\n  splitting off, which depend on the "
    "release. (Planned as a Llama, four with adapters were nearer: it lacked that copy.)\n"
    "* FSDP in the runs is version 1, and planned as such. With adapters it waits for the gradient "
    "of a frozen unit's input,\n  and in a reentrant checkpoint keeps both until the backward "
    "ends: 32 layers of inputs and of gradients.\n"
    "* Packed bases (NF4, scales packed too, by bitsandbytes): with PEFT's own adapters six rows "
    "agree within 0.015 %. FOAK\n  also fuses adapters of a packed base (LoRA_QKV, LoRA_W): these "
    "keep their input and what dropout left of it for each of\n  queries, keys and values, and no "
    "mask. Planned so, all rows on one GPU agree within 0.02 %.\n"
    "* 94 peaks of source 1 were asked when all above had been settled, and nothing was fitted on "
    "them: 66 are within 0.02 %,\n  and of the 17 that miss 0.1 % thirteen are fused adapters "
    "under "
    "FSDP (below) and four Mixtral, whose experts' loop the\n  data decides. Asked with what TRL "
    "0.13 does to a base that PEFT prepared (`--kbit-casting yes`), Mistral's two runs on one\n"
    "  GPU agree within 0.0001 %; without, they would be 4.5 and 2.9 % too high. Of 76 runs that "
    "ran out of memory four are\n  planned to fit: Llama-2-70B in NF4 on two GPUs with four "
    "sequences, which are too much at the high end, and Mistral trained\n  whole on two "
    "GPUs with sixteen, which is planned to fit once cached blocks are given back.\n"
    "* FSDP ignores fused adapters: they are whole on every GPU, with states and gradients. The "
    "published bytes between steps\n  say that each takes 16 bits (8 bytes a value in all, on two "
    "GPUs and on four), which was not found in a source. Where\n  the loss is the peak the rows "
    "agree "
    "within 0.02 %; where a layer is, they are 0.1 to 0.6 % too low, by four bytes for\n  each "
    "value "
    "of an adapter whose gradient is there already: who holds those was not found.\n"
    "* GPTQ bases (fms-acceleration's QuantLinear, 4 bits, groups of 128; Llama-2-70B's checkpoint "
    "has "
    "none, `gptq-row`):\n  the six runs with PEFT's own adapters agree within 0.0011 %, and "
    "between "
    "steps the twenty of one GPU within 0.1 %. Two\n  runs that ran out of memory (70B on two "
    "GPUs) "
    "are planned to fit, by 2 to 4 GiB, and are too much at the high end.\n"
    "* Mixtral in GPTQ (`gptq-row`; each expert's three products are packed, the router is not): "
    "four runs on one GPU agree within\n  0.0007 %, and the bytes between steps of all "
    "eight within 0.0001 %. Under FSDP the peak is in the\n  experts, where "
    "the data decides how many tokens visit the last one; planned are equal shares, and the rows "
    "with PEFT's\n  own adapters are 0.05 to 0.06 % too low. If all tokens visited one expert, "
    "they would need 1.2 to 2.3 % more than published.\n"
    "* Mistral of 4.45 repeats keys and values for the flash_attn package "
    "(MistralFlashAttention2.forward), as Llama does not:\n  asked without that, rows whose peak "
    "is "
    "in a layer would be 1.5 to 2.2 % too low.\n"
    "* nvidia-smi counts the allocator's gaps, which depend on the order and the sizes of all "
    "earlier requests, so also on\n  kernels and versions that these runs do not share with the "
    "plan, and the context, which the plan assumes. Where what\n  is needed is more than the card "
    "has (flushing), the figure is that of the allocator within the card, which gives\n  cached "
    "segments back; without a limit it would take more. Llama-3-8B's two runs were "
    "slower for it, by 20 and 10 %.\n"
    "* fms-hf-tuning adds the tokens that a tokenizer lacks and makes the tables as long as the "
    "tokenizer\n  (tokenizer_and_embedding_resize): a padding and an unknown token for Llama 3 "
    "(128,258), a padding token for Mistral and\n  Llama 2 (32,001). Asked with the vocabularies "
    "of "
    "the checkpoints, peaks at the loss were 0.1 to 0.6 MB too low. The\n  tokenizers of "
    "PowerLM-3b and santacoder were not at hand: their rows have the configuration's. No row "
    "states "
    "its vocabulary: which tokens\n  Llama's and Mistral's tokenizers lack is known of them, was "
    "looked up when these rows had been off, and is the one thing beside\n  the adapters' 16 bits "
    "above that is taken from what the rows show.\n"
    "* The release of PyTorch matters: until 2.8 `logits[..., :-1, :]` is two slices, the second "
    "of "
    "all classes (ATen/TensorIndexing.h,\n  applySlice: `length.sym_eq(stop)`, and `:` has no "
    "end). "
    "The backward of the second takes the block that the returned logits\n  left, for zeros of the "
    "shifted ones; that of the first finds the shifted logits' block too small for the whole, "
    "where "
    "the\n  two are rounded to other multiples of 2 MiB, as these vocabularies are. Asked as torch "
    "2.11, 21 rows with adapters, FOAK's\n  cross-entropy and the whole loss were 12 to 28 % too "
    "low "
    "on the device; asked as 2.4.1 they are within 10 %, half within\n  2.3 %. Two rows are worse "
    "for "
    "it, by a block of logits each: fms-liger-064 (+2.3 % as torch 2.11) and "
    "fms-gptq-mistral-2x4\n  "
    "(-10.9 %). Torch 2.4.1 itself, on the dry runtime with weights made on the device, reserves "
    "71,186 MiB in the step of\n  fms-liger-064, and what is planned for that is 0.9 % less: what "
    "the "
    "run's own start left in the cache is the difference.\n"
    "* ArcticTraining's baselines (DeepSpeed with optimizer and, on one GPU, parameters in host "
    "memory; 32,000 to 65,000 tokens) are 1.2\n  and 1.5 % too low on the device; all three that "
    "are known to have run are planned to fit, the longest, which its file calls\n  close to out "
    "of memory, with 0.5 GiB to spare.\n"
    "* LitGPT's rows ran its code of April (0.3.0) and of July to September 2024 (0.4.13), and are "
    "asked as that, its QLoRA with\n  bitsandbytes 0.42 and all with torch 2.4.1, where 2.2 and "
    "2.3 "
    "ran the first. The sequence is the longest sample's, 512 tokens.\n  LoRA is within 0.11 %, "
    "QLoRA within 0.36 %; half a unit of their last digit is 0.02 to 0.11 %. What misses of QLoRA "
    "is "
    "how packed\n  weights lie in blocks that loading left: real runs of the same code on the dry "
    "runtime are within 0.17 %, with\n  an A10G's workspaces (51 MB less than an H100's). Between "
    "two steps it holds what the GEMMs of a whole\n  forward read: the logits, which the loop has "
    "a name for, have their graph, and the contexts of bitsandbytes' nodes are\n  no saved tensors "
    "that a backward lets go.\n"
    "* Two of the out-of-memory threads bring the whole message. Of both `plimsoll oom` names a "
    "layer's flat parameter that is\n  gathered (386 MiB, asked as 388), where 28.5 and 38.4 GiB "
    "are planned to be allocated and the messages say 28.42\n  and 37.42.\n\n";

}  // namespace

std::string memory_accuracy_page(const MemoryRows& all) {
  std::string page =
      kTitle + tools::goal_lines({all}, {"peak_bytes", "reserved_bytes", "device_bytes"}) + kHead;
  page += "## Summary\n\n" + summary(all) + "\n" + kReading + reserved_table(all) +
          bounds_table(all) + "## Sources\n\n";
  for (std::size_t i = 0; i < all.document.sources.size(); ++i)
    page += fmt::format("{}. {}\n", i + 1, all.document.sources[i]);
  page += "\nPublished figures that were left out, and why:\n\n";
  for (const auto& [why, count] : all.document.left_out)
    page += fmt::format("* {}: {}\n", why, count);
  page += "\nCounted apart, and not among the published figures above:\n\n";
  for (const auto& [what, count] : all.document.apart)
    page += fmt::format("* {}: {}\n", what, count);
  page +=
      "\n## Rows\n\nOf sources 1 and 2: full recomputation, foreach AdamW, weights loaded in bf16 "
      "(GPTQ: fp16), 4096 tokens a sequence\n(LLaMA-Factory's: fused AdamW, 1024; santacoder's: "
      "2048). All is said in the commands below. Bytes; nvidia-smi in MiB.\n\n"
      "| row | model | how | micro-batch | kernels of the run | Transformers | published peak | "
      "planned "
      "| error | nvidia-smi | planned | error |\n| --- | --- | --- | --: | --- | --- | --: | --: | "
      "--: | "
      "--: | --: | --: |\n";
  for (const MemoryRow& row : all.rows()) page += row_line(row);
  page +=
      "\n## The rows as questions\n\nWhat `fit` answers to each is what stands above (a test "
      "asks). "
      "A MODEL.json is the configuration in\n`reports/evidence/published/memory.json`.\n\n```\n";
  for (const MemoryRow& row : all.rows()) page += fmt::format("# {}\n{}\n", row.id, row.command());
  page += "```\n";
  return page;
}

}  // namespace plimsoll::tests
