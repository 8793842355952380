"""Which packages each program of tools/oracle needs."""
import functools
import importlib.util

# What each program imports; one that is a part of another is run with that one.
PACKAGES = {
    "allocator_histories.py": ("torch",),
    "attention_scratch.py": ("torch", "transformers"),
    "bitsandbytes_checkpoints.py": ("torch", "transformers", "bitsandbytes", "peft", "safetensors", "accelerate"),
    "bitsandbytes_goldens.py": ("torch", "bitsandbytes"),
    "compiled_graphs.py": ("torch", "transformers"),
    "check_exports.py": ("torch", "transformers", "accelerate", "peft", "deepspeed"),
    "deepspeed_measure.py": ("torch", "transformers", "peft", "deepspeed", "liger_kernel", "bitsandbytes", "trl"),
    "device_overheads.py": ("torch", "transformers"),
    "drawn_runs.py": ("torch", "transformers", "accelerate", "peft"),
    "dry_runs.py": ("torch", "transformers", "accelerate", "peft"),
    "float8_goldens.py": ("torch", "transformers", "peft", "torchao", "safetensors"),
    "export_runs.py": ("torch", "transformers", "accelerate", "peft", "deepspeed"),
    "galore_goldens.py": ("torch", "galore_torch"),
    "host_times.py": ("torch", "transformers", "peft", "deepspeed", "liger_kernel", "bitsandbytes"),
    "kernel_goldens.py": ("torch", "transformers"),
    "load_runs.py": ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "safetensors"),
    "messages.py": ("torch", "transformers", "accelerate", "peft", "deepspeed"),
    "numerics_goldens.py": ("torch", "transformers", "peft", "safetensors"),
    "oom_runs.py": ("torch", "transformers", "peft"),
    "parameter_tables.py": ("torch", "transformers"),
    "partitions.py": ("torch",),
    "plain_torch.py": ("torch",),
    "snapshots.py": ("torch", "transformers", "peft"),
    "torch_measure.py": ("torch", "transformers"),
    "wide_draw.py": (),
}
OF_MEASURE = """activations adapters awq_base bare_packages batches compiled data_parallel flash_3_package flash_package
flex_attention float8 fms_gptq fms_kernels fsdp1 kept_ops litgpt_code optimizers other_code packed_base routing
sdpa_kernels torchtitan_code torchtune_code trl_head unsloth_kernels xformers_package""".split()
PARTS = {**{f"{part}.py": "torch_measure.py" for part in OF_MEASURE}, "apart.py": "dry_runs.py",
         "device_rates.py": "device_overheads.py", "dry_host.py": "dry_runs.py", "liger.py": "dry_runs.py",
         "nvme_files.py": "deepspeed_measure.py", "numerics_models.py": "numerics_goldens.py",
         "deepspeed_modules.py": "deepspeed_measure.py"}


def missing(program):
    return [name for name in PACKAGES[program] if importlib.util.find_spec(name) is None]


def needs(program):
    """Skips a test whose program lacks a package."""
    def decorate(test):
        @functools.wraps(test)
        def run(self):
            if missing(program):
                self.skipTest(f"{program}: no {', '.join(missing(program))} here")
            test(self)
        return run
    return decorate
