// Published measurements of other people's runs (reports/evidence/published/): each row a question
// as a user types it, with the figures that its source states.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/quantity.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

struct PublishedRow {
  std::string id, model, gpu;
  std::string config;  // of a model that the catalog lacks, as JSON; else ""
  std::size_t source = 0;  // of PublishedDocument::sources
  Options options;  // of the question, but for MODEL
  std::string ran_kernels;  // "eager", or what the run had instead; "" where it is not said
  std::string transformers;  // release of the run; "" where it is not stated
  bool stand_in = false;  // another program than the one that is planned (stand_ins)
  bool in_sample = false;  // constants were fitted on it
  // Its sequences are at most as long as is asked: what is planned must not be less, and how much
  // more it is says nothing.
  bool upper_bound = false;
  bool out_of_memory = false;  // the run failed
  std::optional<Bytes> peak;  // torch.cuda.max_memory_allocated
  std::optional<Bytes> resident;  // torch.cuda.memory_allocated between steps
  std::optional<Bytes> reserved;  // torch.cuda.max_memory_reserved
  std::optional<Bytes> device;  // as nvidia-smi counts
  std::optional<double> speed;  // tokens/s of one GPU

  std::string command() const;  // `plimsoll fit …`; MODEL.json where it brings a configuration
};

// A program on few and on many GPUs: rows by their ids, or rows of their own.
struct PublishedScaling {
  std::string what;
  PublishedRow from, to;
};

struct PublishedDocument {
  std::string name;  // of its file: "memory"
  std::vector<std::string> sources;
  std::map<std::size_t, std::string> stand_ins;  // by source: which program stands for its own
  std::map<std::string, std::int64_t> left_out;  // why it is not asked, and how many figures
  // What is no training step of a stack here, and how many.
  std::map<std::string, std::int64_t> apart;
  std::vector<PublishedRow> rows;
  std::vector<PublishedScaling> scaling;

  std::size_t figures() const;  // rows, and what was left out
};

// Error{bad_input}: not such a document.
PublishedDocument read_published(std::string_view text, const std::string& name);

// Every *.json of a folder, by name; "": what this program was built with.
std::vector<PublishedDocument> published_documents(const std::string& folder);

// The texts that this program was built with (reports/evidence/published/).
std::string_view published_memory_text();
std::string_view published_throughput_text();

}  // namespace plimsoll::tools
