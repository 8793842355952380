"""The code in exported snippets computes what the model's own does: losses and gradients, on the
host. Skipped where torch and transformers are not installed."""
import copy
import unittest

from oracle import HAS_TORCH, ROOT

EXPORTS = ROOT / "tests" / "golden" / "exports"
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 5, "n_head": 4, "vocab_size": 131,
        "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}


def functions(name):
    """What a snippet defines before it loads the model."""
    text = (EXPORTS / f"{name}.transformers.py").read_text()
    scope = {}
    exec(compile(text[:text.index("\nmodel = ")], name, "exec"), scope)
    return scope


@unittest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
class Exports(unittest.TestCase):
    def check(self, config, change, items=None):
        """`change` leaves loss and gradients as they are, and names, evaluation, logits."""
        import torch
        import transformers
        torch.manual_seed(0)
        plain = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config))
        changed = copy.deepcopy(plain)
        change(changed)
        ids = torch.randint(0, 131, (3, 29))
        labels = ids.clone()
        labels[0, :7] = -100
        found = []
        for model in (plain, changed):
            model.train()
            loss = model(input_ids=ids, labels=labels, num_items_in_batch=items).loss
            loss.backward()
            found.append((loss.detach(), {n: p.grad for n, p in model.named_parameters()}))
        torch.testing.assert_close(found[0][0], found[1][0])
        self.assertEqual(list(found[0][1]), list(found[1][1]))
        for name, gradient in found[0][1].items():
            torch.testing.assert_close(gradient, found[1][1][name], msg=name)
        self.assertEqual(list(plain.state_dict()), list(changed.state_dict()))
        with torch.no_grad():
            torch.testing.assert_close(*(m.eval()(input_ids=ids).logits for m in (plain, changed)))

    def test_a_chunked_loss_is_the_models_own(self):
        import torch
        chunked = functions("fsdp-chunked-every")["chunked_loss"]
        for config in (LLAMA, GPT2, {**LLAMA, "tie_word_embeddings": True}):
            self.check(config, chunked)
            self.check(config, chunked, items=torch.tensor(1234))

    def test_checkpoints_around_groups_change_no_gradient(self):
        groups = functions("fsdp-chunked-every")["checkpoint_groups"]
        for config in (LLAMA, GPT2):
            for size in (1, 2, 5, 7):
                self.check(config, lambda model: groups(model, size))

    def test_they_recompute_each_layer_once(self):
        import torch
        import transformers
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**LLAMA))
        functions("fsdp-chunked-every")["checkpoint_groups"](model, 2)
        calls = []
        for layer in model.model.layers.children():
            layer.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
        ids = torch.zeros(1, 8, dtype=torch.int64)
        model.train()(input_ids=ids, labels=ids).loss.backward()
        self.assertEqual(len(calls), 10)

    def test_a_checkpoint_around_the_attention_changes_no_gradient(self):
        import importlib.util
        import sys
        import types
        if importlib.util.find_spec("liger_kernel") is None:  # imported above the function
            name = "liger_kernel.ops.fused_linear_cross_entropy"
            for part in ("liger_kernel", "liger_kernel.ops", name):
                self.addCleanup(sys.modules.pop, part)
                sys.modules[part] = types.ModuleType(part)
            sys.modules[name].LigerFusedLinearCrossEntropyFunction = None
        selective = functions("zero1-fused-selective")["checkpoint_attention"]
        for config in (LLAMA, GPT2):
            self.check(config, selective)


if __name__ == "__main__":
    unittest.main()
