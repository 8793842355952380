"""The head of TRL's trainers from 1.x on (`strategy.loss` "tiled"): add_fused_lm_head of trl 1.16, which makes
log-probabilities of tiles of logits, and what SFTTrainer.compute_loss asks of them. Its Triton kernels are not
launched (liger.launch_no_triton); the GEMMs and what is allocated around them are Python's.

A boolean mask asks the device how many tokens are scored: a dry read says none. Here it is all that have a next one.
"""

OUTPUTS = ("log_probs", "entropy", "is_top1")  # trl/trainer/sft_trainer.py, SFTTrainer.__init__


def apply(model, loss):
    if loss != "tiled":
        return
    from trl.trainer.utils import add_fused_lm_head
    add_fused_lm_head(model, outputs=OUTPUTS)
    answer_masks()


def asked(workload):
    return workload["strategy"]["loss"] == "tiled"


def loss(model, ids, labels, context, beside):
    """SFTTrainer.compute_loss: the sum over what is scored, by how many are; then its metrics."""
    import torch
    tokens = torch.full((), ids.numel() - ids.shape[0], device=ids.device)  # Trainer's num_items_in_batch
    with context:
        outputs = model(input_ids=ids, labels=labels, use_cache=False, fused_lm_head=True, **beside)
    per_token = -outputs.log_probs
    value = per_token.sum() / torch.as_tensor(tokens).clamp(min=1)
    scored = outputs.label_mask.sum().sum()
    entropy = outputs.entropy.detach().sum().sum()
    correct = outputs.is_top1.sum().sum()
    (entropy / scored).item()
    (correct / scored).item()
    return value


def answer_masks():
    """aten::nonzero (aten/src/ATen/native/cuda/Nonzero.cu) as it allocates where everything is true: the count, and
    indices with the tokens' axis first in memory."""
    import torch
    if getattr(answer_masks, "library", None) is not None:
        return
    library = answer_masks.library = torch.library.Library("aten", "IMPL")

    def nonzero(mask):
        count = torch.empty(1, dtype=torch.int32, device=mask.device)
        found = torch.empty(mask.dim(), mask.numel(), dtype=torch.int64, device=mask.device)
        del count
        return found.t()

    library.impl("nonzero", nonzero, "CUDA")
