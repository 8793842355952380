// What is not modelled of torch.nn.DataParallel.
#include "planner/stacks/pytorch/refusals.h"

namespace plimsoll::planner::pytorch {

void refuse_data_parallel(const models::Strategy& s) {
  if (s.data.kind != models::DataParallelKind::dp) return;
  const auto refuse_if = [](bool it_is, ErrorKind kind, const char* what) {
    check(!it_is, kind, [&] { return std::string("--data-parallel dp ") + what; });
  };
  const auto unmodelled = [&](bool it_is, const char* what) {
    refuse_if(it_is, ErrorKind::unsupported, what);
  };
  refuse_if(s.gpus < 2, ErrorKind::bad_input, "is of several GPUs (--gpus)");
  refuse_if(s.data.zero != 0 || s.tp > 1, ErrorKind::bad_input,
            "goes with --zero 0 and --tp 1: one process drives all GPUs");
  refuse_if(s.gpus > s.gpus_per_node, ErrorKind::bad_input,
            "is of one node: one process drives all GPUs");
  // Under a loop's own autocast a thread would compute in fp16, whose dtype no thread inherits
  // (torch/nn/parallel/parallel_apply.py).
  refuse_if(is_mixed(s.precision), ErrorKind::bad_input,
            "trains in the dtype of the weights: Transformers' Trainer switches no autocast on for "
            "a model that it wraps so, whatever bf16=True says; ask with --precision fp32, bf16 or "
            "fp16");
  refuse_if(s.quantize.has_value(), ErrorKind::bad_input,
            "with --quantize: Transformers' Trainer wraps no quantized model so");
  unmodelled(s.lora || !s.freeze.empty() || !s.train.empty(),
             "with adapters, --freeze or --train is not modelled yet (gradients of zeros are made "
             "of all that is frozen)");
  unmodelled(!models::is_transformers(s.code), "with --model-code is not modelled yet");
  unmodelled(s.compile != models::Compile::no, "with --compile is not modelled yet");
  // A replica's copy of its attributes has the bound forward of the original.
  refuse_if(s.kernels == models::Kernels::liger, ErrorKind::bad_input,
            "with --kernels liger ends in PyTorch's \"Expected all tensors to be on the same "
            "device\": Liger binds its forward to the model of the first GPU");
  unmodelled(s.kernels != models::Kernels::eager,
             "with --kernels fused or unsloth is not modelled yet");
  unmodelled(s.offload.any(), "with --offload is not modelled yet");
  unmodelled(s.optimizer_in_backward, "with --optimizer-in-backward is not modelled yet");
  unmodelled(s.hold_outputs, "with --hold-outputs is not modelled yet");
  unmodelled(s.rows != models::Rows::full,
             "with rows that hold padding or several samples is not modelled yet");
  unmodelled(s.use_reentrant.value_or(false), "with --use-reentrant yes is not modelled yet");
  unmodelled(s.attention == models::Attention::flex, "with --attention flex is not modelled yet");
  unmodelled(s.transformers != models::kTransformers || s.torch != models::kTorch,
             "with other releases of Transformers or torch is not modelled yet");
}

}  // namespace plimsoll::planner::pytorch
