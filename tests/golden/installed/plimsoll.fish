# fish completion of plimsoll, made from its option table
complete -c plimsoll -f
complete -c plimsoll -n __fish_use_subcommand -a fit -d 'Will it fit, where does the memory go, and at which moment is the peak'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -a 'gpt2 llama-3.1-8b'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l params -d 'a bare parameter count (7.5e9, 7B) for MODEL: model states only' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l assume -d 'read the config as this model_type, whatever it says (llama)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l dropout -d 'of every dropout of the model: a rate, or config (config)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l task -d 'the head and its loss: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)' -x -a 'sft classification mlm dpo kto orpo reward grpo'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l gpu -d 'see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)' -x -a 'h100 rtx-4090'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l gpus -d 'world size (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l gpus-per-node -d '(8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l gpu-memory -d '80GB, 79.6GiB, bytes: what CUDA reports as total' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l intra-node-bandwidth -d 'per GPU, one direction (the catalog'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l inter-node-bandwidth -d 'per GPU, one direction (the vendor'\''s servers'\'')' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l reserve -d 'kept free (0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l host-memory -d 'of a node, for what is offloaded: 256GiB (not judged)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l calibration -d 'overheads as tools/evidence fit measured them (built in)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l stack -d 'plimsoll, pytorch, deepspeed, megatron (pytorch)' -x -a 'plimsoll pytorch deepspeed megatron'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l device -d 'cuda, cpu (cuda; cpu only with plimsoll)' -x -a 'cuda cpu'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l compile -d 'torch.compile of each block, or of the model (no; alone: block)'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l kernels -d 'eager, liger, unsloth, fused (eager)' -x -a 'eager liger fused unsloth'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l torch-version -d '2.4 to 2.11 (2.11)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l allocator-conf -d 'PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l hold-outputs -d 'the loop keeps the model'\''s outputs until after backward'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l transformers-version -d '4.45 to 5.23 (5.17)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l bitsandbytes-version -d '0.41 to 0.50 (0.50.2)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l model-code -d 'transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13: whose forward (transformers)' -x -a 'transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l zero -d '0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP' -x -a '0 1 2 3'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l fsdp-activation-checkpointing -d 'FSDP1: checkpoints inside its units (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l fsdp-sync-module-states -d 'FSDP1: rank 0 sends each unit as it is wrapped (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l fsdp-use-orig-params -d 'FSDP1: the optimizer steps original parameters (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l fsdp-version -d '1, 2 (2)' -x -a '1 2'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l shard-group -d 'hybrid sharding inside groups of N (all ranks)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l reduce-bucket -d 'plimsoll: bytes of one gradient bucket (25MiB)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l data-parallel -d 'ddp: a process for each GPU; dp: torch.nn.DataParallel, one process (ddp)' -x -a 'ddp dp'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l bucket-cap-mb -d 'DDP'\''s bucket_cap_mb (25)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l gradient-as-bucket-view -d 'DDP'\''s own knob (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l reduce-bucket-size -d 'deepspeed: elements of a bucket (5e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l overlap-comm -d 'deepspeed: two buckets (yes with --zero 3)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l round-robin-gradients -d 'deepspeed --zero 1, 2: ranks own parameters in turn (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l sub-group-size -d 'deepspeed --zero 3: elements of one step (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l stage3-prefetch-bucket-size -d 'deepspeed (5e7)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l stage3-param-persistence-threshold -d 'deepspeed (1e5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l stage3-max-live-parameters -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l stage3-max-reuse-distance -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l prefetch -d 'units gathered ahead' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l deterministic -d 'plimsoll: all stages reduce at the same moments'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l exchange -d 'plimsoll: nccl (GPUs), mpi or threads (the host)' -x -a 'threads mpi nccl'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l tp -d 'tensor parallel ranks, of torchtitan (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l sequence-parallel -d 'shard what tensor parallelism replicates'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l pp -d 'pipeline stages (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l pp-schedule -d 'gpipe, 1f1b, interleaved, zero-bubble' -x -a 'gpipe 1f1b interleaved zero-bubble'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l virtual-stages -d 'stages per pipeline rank (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l cp -d 'context parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l ep -d 'expert parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l precision -d 'fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)' -x -a 'fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l fp8-recipe -d 'torchao'\''s, of fp8-mixed: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)' -x -a 'tensorwise rowwise rowwise_with_gw_hp'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l fp8-all-gather -d 'of fp8-mixed: FSDP2 gathers weights that are cast (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l param-dtype -d 'dtype the weights are loaded in (fp32 for mixed)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l grad-dtype -d 'of reduced gradients (the stack'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l reduce-dtype -d 'gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l master-weights -d 'fp32 masters beside 16-bit weights' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l fsdp-upcast -d 'Accelerate'\''s fp32 storage under FSDP (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l optimizer -d 'adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)' -x -a 'adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l optimizer-impl -d 'foreach, fused, for-loop (the stack'\''s)' -x -a 'foreach fused for-loop'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l galore-rank -d 'of the projected gradients (128)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l optimizer-in-backward -d 'step each parameter as its gradient comes'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l seq-len -d 'tokens (4096, at most what the model takes)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l micro-batch -d 'sequences per GPU and micro-step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l grad-accum -d 'micro-steps per step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l global-batch -d 'sequences per step of all GPUs, instead of --grad-accum' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l padding-mask -d 'rows hold padding, which an attention mask says (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l data -d 'lengths: JSONL with input_ids, length or num_tokens, or CSV of length,count; planned is the worst batch' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l padding -d 'none; free: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)' -x -a 'none free longest max'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l packing -d 'of --data: no, wrapped, bfd, as TRL packs (no)' -x -a 'no wrapped bfd'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l pad-to-multiple-of -d 'of --data: rows are as long as a multiple (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l recompute -d 'none, selective (core_attn), full, sqrt, every:K (uniform:K), block:N (the first N), nth:N (every Nth), recursive:C, ops:NAME+NAME, fit, budget:SIZE (none)' -x -a 'none selective'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l use-reentrant -d 'of checkpoints (no; FSDP1'\''s old releases: yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l attention -d 'flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math' -x -a 'flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l loss -d 'full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)' -x -a 'full chunked fused tiled'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l adapter -d 'lora, ia3, vera, prompt-tuning, p-tuning, prefix-tuning (lora, with --lora-rank)' -x -a 'lora ia3 vera prompt-tuning p-tuning prefix-tuning'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l lora-rank -d 'train adapters of this rank, freeze the rest' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l adapters -d 'LoRA: how many are loaded; one is trained (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l lora-alpha -d '(16)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l lora-targets -d 'all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l target-parameters -d 'mlp.experts.gate_up_proj,…: stacked experts with LoRA, of Transformers 5' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l feedforward-modules -d 'ia3: of the targets, those whose input is scaled; none (PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l virtual-tokens -d 'of a prompt, or of a prefix'\''s keys and values, beside --seq-len' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l encoder-hidden -d 'width of the perceptron: p-tuning (the model'\''s), prefix-tuning (it has none)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l lora-dropout -d '(0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l adapter-dtype -d 'fp32, bf16 (fp32)' -x -a 'fp32 bf16'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l modules-to-save -d 'embed_tokens,lm_head,…: train copies of these whole modules' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l lora-bias -d 'PEFT'\''s lora_bias (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l use-dora -d 'PEFT'\''s weight-decomposed adapters (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l quantize -d 'nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none): packs the frozen base' -x -a 'nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l quant-storage -d 'uint8, bf16, fp16, fp32: holds packed values (uint8)' -x -a 'uint8 bf16 fp16'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l kbit-prep -d 'PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l kbit-casting -d 'TRL'\''s peft_module_casting_to_bf16 behind it: all but norms in bf16 (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l freeze -d 'parameters that are not trained (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l train -d 'exceptions from --freeze (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l offload -d 'optimizer, gradients, params, activations: to the host' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l offload-to -d 'cpu, nvme, managed (cpu)' -x -a 'cpu nvme managed'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l offload-pin -d 'pin_memory of what is on the host (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l offload-optimizer-buffer-count -d 'deepspeed, nvme: offload_optimizer.buffer_count (4)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l offload-param-buffer-count -d 'deepspeed, nvme: offload_param.buffer_count (5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l offload-param-buffer-size -d 'deepspeed, nvme: offload_param.buffer_size, elements (1e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l offload-param-max-in-cpu -d 'deepspeed, nvme: parameters that leave their files (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l mode -d 'train, inference (train)' -x -a 'train inference'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l phase -d 'step; load: also what loading the model takes, which may be more; merge: what loading and merging the trained adapter takes, in a process of its own (step)' -x -a 'step load merge'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l device-map -d 'of --phase load, with AWQ or nothing packed: none, then model.to; auto: from_pretrained'\''s (none; of --phase merge auto)' -x -a 'none auto'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l batch -d 'inference: sequences' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l context -d 'inference: tokens' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l kv-dtype -d 'inference: of the key-value cache' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l deepspeed -d 'the user'\''s own ds_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l peft -d 'the user'\''s own adapter_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l accelerate -d 'the user'\''s own config.yaml of accelerate launch' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l training-args -d 'TrainingArguments as JSON or YAML, MODEL in it or not' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l axolotl -d 'the user'\''s own YAML of axolotl train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l llamafactory -d 'the user'\''s own YAML of llamafactory-cli train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l swift -d 'the arguments of swift sft (ms-swift) as YAML or JSON' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l torchtitan -d 'the user'\''s own TOML of torchtitan 0.2' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l trainer -d 'another program'\''s defaults: see `plimsoll trainers`' -x
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l detail -d 'the whole timeline and every tensor in the JSON document'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l html -d 'write a page with pictures; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l explain -d 'how the figures come about: of the plan (all), of the time (time), of a tensor'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l plot -d 'draw memory over the step below the table'
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l svg -d 'memory over the step as a picture' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l trace -d 'memory by category and ops, for ui.perfetto.dev' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l memory-viz -d 'a snapshot for pytorch.org/memory_viz' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from fit' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a batch -d 'Many fit queries (- for standard input)'
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -F
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l html -d 'write a page with pictures; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l fields -d 'only these of each plan, as in peak_bytes,verdict,time.step_seconds' -x
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l csv -d 'a table with a header (of --fields, or of the usual ones)'
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l markdown -d 'the same for GitHub and wikis (--html: as a page)'
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l threads -d '(all cores)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l fleet -d 'pools of GPUs with counts and prices, and jobs (those of QUERIES.jsonl too): which job fits where, who goes where, what to buy' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l solver-seconds -d 'for each assignment of --fleet (10)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from batch' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a models -d 'The models that are known by name'
complete -c plimsoll -n '__fish_seen_subcommand_from models' -l html -d 'a page with what trains on what, and how; - for standard output (a minute)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from models' -l search -d 'only those with TEXT in a name or an alias' -x
complete -c plimsoll -n '__fish_seen_subcommand_from models' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from models' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a gpus -d 'The GPUs that are known by name'
complete -c plimsoll -n '__fish_seen_subcommand_from gpus' -l html -d 'a page with what trains on what, and how; - for standard output (a minute)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from gpus' -l search -d 'only those with TEXT in a name or an alias' -x
complete -c plimsoll -n '__fish_seen_subcommand_from gpus' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from gpus' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a trainers -d 'Training programs whose defaults --trainer takes'
complete -c plimsoll -n '__fish_seen_subcommand_from trainers' -l html -d 'a page with what trains on what, and how; - for standard output (a minute)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from trainers' -l search -d 'only those with TEXT in a name or an alias' -x
complete -c plimsoll -n '__fish_seen_subcommand_from trainers' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from trainers' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a recommend -d 'How should it run on these GPUs'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -a 'gpt2 llama-3.1-8b'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l params -d 'a bare parameter count (7.5e9, 7B) for MODEL: model states only' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l assume -d 'read the config as this model_type, whatever it says (llama)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l dropout -d 'of every dropout of the model: a rate, or config (config)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l task -d 'the head and its loss: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)' -x -a 'sft classification mlm dpo kto orpo reward grpo'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l gpu -d 'see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)' -x -a 'h100 rtx-4090'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l gpus -d 'world size (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l gpus-per-node -d '(8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l gpu-memory -d '80GB, 79.6GiB, bytes: what CUDA reports as total' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l intra-node-bandwidth -d 'per GPU, one direction (the catalog'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l inter-node-bandwidth -d 'per GPU, one direction (the vendor'\''s servers'\'')' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l reserve -d 'kept free (0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l host-memory -d 'of a node, for what is offloaded: 256GiB (not judged)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l calibration -d 'overheads as tools/evidence fit measured them (built in)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l stack -d 'plimsoll, pytorch, deepspeed, megatron (pytorch)' -x -a 'plimsoll pytorch deepspeed megatron'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l device -d 'cuda, cpu (cuda; cpu only with plimsoll)' -x -a 'cuda cpu'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l compile -d 'torch.compile of each block, or of the model (no; alone: block)'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l kernels -d 'eager, liger, unsloth, fused (eager)' -x -a 'eager liger fused unsloth'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l torch-version -d '2.4 to 2.11 (2.11)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l allocator-conf -d 'PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l hold-outputs -d 'the loop keeps the model'\''s outputs until after backward'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l transformers-version -d '4.45 to 5.23 (5.17)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l bitsandbytes-version -d '0.41 to 0.50 (0.50.2)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l model-code -d 'transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13: whose forward (transformers)' -x -a 'transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l zero -d '0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP' -x -a '0 1 2 3'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l fsdp-activation-checkpointing -d 'FSDP1: checkpoints inside its units (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l fsdp-sync-module-states -d 'FSDP1: rank 0 sends each unit as it is wrapped (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l fsdp-use-orig-params -d 'FSDP1: the optimizer steps original parameters (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l fsdp-version -d '1, 2 (2)' -x -a '1 2'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l shard-group -d 'hybrid sharding inside groups of N (all ranks)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l reduce-bucket -d 'plimsoll: bytes of one gradient bucket (25MiB)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l data-parallel -d 'ddp: a process for each GPU; dp: torch.nn.DataParallel, one process (ddp)' -x -a 'ddp dp'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l bucket-cap-mb -d 'DDP'\''s bucket_cap_mb (25)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l gradient-as-bucket-view -d 'DDP'\''s own knob (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l reduce-bucket-size -d 'deepspeed: elements of a bucket (5e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l overlap-comm -d 'deepspeed: two buckets (yes with --zero 3)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l round-robin-gradients -d 'deepspeed --zero 1, 2: ranks own parameters in turn (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l sub-group-size -d 'deepspeed --zero 3: elements of one step (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l stage3-prefetch-bucket-size -d 'deepspeed (5e7)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l stage3-param-persistence-threshold -d 'deepspeed (1e5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l stage3-max-live-parameters -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l stage3-max-reuse-distance -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l prefetch -d 'units gathered ahead' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l deterministic -d 'plimsoll: all stages reduce at the same moments'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l exchange -d 'plimsoll: nccl (GPUs), mpi or threads (the host)' -x -a 'threads mpi nccl'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l tp -d 'tensor parallel ranks, of torchtitan (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l sequence-parallel -d 'shard what tensor parallelism replicates'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l pp -d 'pipeline stages (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l pp-schedule -d 'gpipe, 1f1b, interleaved, zero-bubble' -x -a 'gpipe 1f1b interleaved zero-bubble'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l virtual-stages -d 'stages per pipeline rank (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l cp -d 'context parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l ep -d 'expert parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l precision -d 'fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)' -x -a 'fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l fp8-recipe -d 'torchao'\''s, of fp8-mixed: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)' -x -a 'tensorwise rowwise rowwise_with_gw_hp'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l fp8-all-gather -d 'of fp8-mixed: FSDP2 gathers weights that are cast (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l param-dtype -d 'dtype the weights are loaded in (fp32 for mixed)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l grad-dtype -d 'of reduced gradients (the stack'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l reduce-dtype -d 'gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l master-weights -d 'fp32 masters beside 16-bit weights' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l fsdp-upcast -d 'Accelerate'\''s fp32 storage under FSDP (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l optimizer -d 'adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)' -x -a 'adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l optimizer-impl -d 'foreach, fused, for-loop (the stack'\''s)' -x -a 'foreach fused for-loop'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l galore-rank -d 'of the projected gradients (128)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l optimizer-in-backward -d 'step each parameter as its gradient comes'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l seq-len -d 'tokens (4096, at most what the model takes)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l micro-batch -d 'sequences per GPU and micro-step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l grad-accum -d 'micro-steps per step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l global-batch -d 'sequences per step of all GPUs, instead of --grad-accum' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l padding-mask -d 'rows hold padding, which an attention mask says (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l data -d 'lengths: JSONL with input_ids, length or num_tokens, or CSV of length,count; planned is the worst batch' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l padding -d 'none; free: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)' -x -a 'none free longest max'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l packing -d 'of --data: no, wrapped, bfd, as TRL packs (no)' -x -a 'no wrapped bfd'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l pad-to-multiple-of -d 'of --data: rows are as long as a multiple (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l recompute -d 'none, selective (core_attn), full, sqrt, every:K (uniform:K), block:N (the first N), nth:N (every Nth), recursive:C, ops:NAME+NAME, fit, budget:SIZE (none)' -x -a 'none selective'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l use-reentrant -d 'of checkpoints (no; FSDP1'\''s old releases: yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l attention -d 'flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math' -x -a 'flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l loss -d 'full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)' -x -a 'full chunked fused tiled'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l adapter -d 'lora, ia3, vera, prompt-tuning, p-tuning, prefix-tuning (lora, with --lora-rank)' -x -a 'lora ia3 vera prompt-tuning p-tuning prefix-tuning'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l lora-rank -d 'train adapters of this rank, freeze the rest' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l adapters -d 'LoRA: how many are loaded; one is trained (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l lora-alpha -d '(16)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l lora-targets -d 'all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l target-parameters -d 'mlp.experts.gate_up_proj,…: stacked experts with LoRA, of Transformers 5' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l feedforward-modules -d 'ia3: of the targets, those whose input is scaled; none (PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l virtual-tokens -d 'of a prompt, or of a prefix'\''s keys and values, beside --seq-len' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l encoder-hidden -d 'width of the perceptron: p-tuning (the model'\''s), prefix-tuning (it has none)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l lora-dropout -d '(0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l adapter-dtype -d 'fp32, bf16 (fp32)' -x -a 'fp32 bf16'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l modules-to-save -d 'embed_tokens,lm_head,…: train copies of these whole modules' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l lora-bias -d 'PEFT'\''s lora_bias (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l use-dora -d 'PEFT'\''s weight-decomposed adapters (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l quantize -d 'nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none): packs the frozen base' -x -a 'nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l quant-storage -d 'uint8, bf16, fp16, fp32: holds packed values (uint8)' -x -a 'uint8 bf16 fp16'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l kbit-prep -d 'PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l kbit-casting -d 'TRL'\''s peft_module_casting_to_bf16 behind it: all but norms in bf16 (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l freeze -d 'parameters that are not trained (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l train -d 'exceptions from --freeze (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l offload -d 'optimizer, gradients, params, activations: to the host' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l offload-to -d 'cpu, nvme, managed (cpu)' -x -a 'cpu nvme managed'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l offload-pin -d 'pin_memory of what is on the host (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l offload-optimizer-buffer-count -d 'deepspeed, nvme: offload_optimizer.buffer_count (4)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l offload-param-buffer-count -d 'deepspeed, nvme: offload_param.buffer_count (5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l offload-param-buffer-size -d 'deepspeed, nvme: offload_param.buffer_size, elements (1e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l offload-param-max-in-cpu -d 'deepspeed, nvme: parameters that leave their files (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l mode -d 'train, inference (train)' -x -a 'train inference'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l phase -d 'step; load: also what loading the model takes, which may be more; merge: what loading and merging the trained adapter takes, in a process of its own (step)' -x -a 'step load merge'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l device-map -d 'of --phase load, with AWQ or nothing packed: none, then model.to; auto: from_pretrained'\''s (none; of --phase merge auto)' -x -a 'none auto'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l batch -d 'inference: sequences' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l context -d 'inference: tokens' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l kv-dtype -d 'inference: of the key-value cache' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l deepspeed -d 'the user'\''s own ds_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l peft -d 'the user'\''s own adapter_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l accelerate -d 'the user'\''s own config.yaml of accelerate launch' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l training-args -d 'TrainingArguments as JSON or YAML, MODEL in it or not' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l axolotl -d 'the user'\''s own YAML of axolotl train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l llamafactory -d 'the user'\''s own YAML of llamafactory-cli train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l swift -d 'the arguments of swift sft (ms-swift) as YAML or JSON' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l torchtitan -d 'the user'\''s own TOML of torchtitan 0.2' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l trainer -d 'another program'\''s defaults: see `plimsoll trainers`' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l detail -d 'the whole timeline and every tensor in the JSON document'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l html -d 'write a page with pictures; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l objective -d 'throughput, gpus (fewest), context (longest), batch (largest), memory (least) (throughput)' -x -a 'throughput gpus'
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l keep -d 'axes that stay as given: precision, optimizer, stack, zero, …' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l only -d 'values that may be taken: zero=2,zero=3,stack=pytorch' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l without -d 'values that may not: adapters=lora,recompute=every' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l min-headroom -d 'free on each GPU (enough for all assumed overheads at their high end)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l tokens -d 'a compute budget, as in 15e12: GPU-days of each plan' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l top -d 'approaches to list (5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l threads -d '(all cores)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from recommend' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a run -d 'Executes training steps for real on our own runtime'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -a 'gpt2 llama-3.1-8b'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l params -d 'a bare parameter count (7.5e9, 7B) for MODEL: model states only' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l assume -d 'read the config as this model_type, whatever it says (llama)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l dropout -d 'of every dropout of the model: a rate, or config (config)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l task -d 'the head and its loss: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)' -x -a 'sft classification mlm dpo kto orpo reward grpo'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l gpu -d 'see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)' -x -a 'h100 rtx-4090'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l gpus -d 'world size (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l gpus-per-node -d '(8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l gpu-memory -d '80GB, 79.6GiB, bytes: what CUDA reports as total' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l intra-node-bandwidth -d 'per GPU, one direction (the catalog'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l inter-node-bandwidth -d 'per GPU, one direction (the vendor'\''s servers'\'')' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l reserve -d 'kept free (0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l host-memory -d 'of a node, for what is offloaded: 256GiB (not judged)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l calibration -d 'overheads as tools/evidence fit measured them (built in)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l stack -d 'plimsoll, pytorch, deepspeed, megatron (pytorch)' -x -a 'plimsoll pytorch deepspeed megatron'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l device -d 'cuda, cpu (cuda; cpu only with plimsoll)' -x -a 'cuda cpu'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l compile -d 'torch.compile of each block, or of the model (no; alone: block)'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l kernels -d 'eager, liger, unsloth, fused (eager)' -x -a 'eager liger fused unsloth'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l torch-version -d '2.4 to 2.11 (2.11)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l allocator-conf -d 'PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l hold-outputs -d 'the loop keeps the model'\''s outputs until after backward'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l transformers-version -d '4.45 to 5.23 (5.17)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l bitsandbytes-version -d '0.41 to 0.50 (0.50.2)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l model-code -d 'transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13: whose forward (transformers)' -x -a 'transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l zero -d '0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP' -x -a '0 1 2 3'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l fsdp-activation-checkpointing -d 'FSDP1: checkpoints inside its units (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l fsdp-sync-module-states -d 'FSDP1: rank 0 sends each unit as it is wrapped (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l fsdp-use-orig-params -d 'FSDP1: the optimizer steps original parameters (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l fsdp-version -d '1, 2 (2)' -x -a '1 2'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l shard-group -d 'hybrid sharding inside groups of N (all ranks)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l reduce-bucket -d 'plimsoll: bytes of one gradient bucket (25MiB)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l data-parallel -d 'ddp: a process for each GPU; dp: torch.nn.DataParallel, one process (ddp)' -x -a 'ddp dp'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l bucket-cap-mb -d 'DDP'\''s bucket_cap_mb (25)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l gradient-as-bucket-view -d 'DDP'\''s own knob (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l reduce-bucket-size -d 'deepspeed: elements of a bucket (5e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l overlap-comm -d 'deepspeed: two buckets (yes with --zero 3)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l round-robin-gradients -d 'deepspeed --zero 1, 2: ranks own parameters in turn (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l sub-group-size -d 'deepspeed --zero 3: elements of one step (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l stage3-prefetch-bucket-size -d 'deepspeed (5e7)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l stage3-param-persistence-threshold -d 'deepspeed (1e5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l stage3-max-live-parameters -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l stage3-max-reuse-distance -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l prefetch -d 'units gathered ahead' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l deterministic -d 'plimsoll: all stages reduce at the same moments'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l exchange -d 'plimsoll: nccl (GPUs), mpi or threads (the host)' -x -a 'threads mpi nccl'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l tp -d 'tensor parallel ranks, of torchtitan (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l sequence-parallel -d 'shard what tensor parallelism replicates'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l pp -d 'pipeline stages (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l pp-schedule -d 'gpipe, 1f1b, interleaved, zero-bubble' -x -a 'gpipe 1f1b interleaved zero-bubble'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l virtual-stages -d 'stages per pipeline rank (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l cp -d 'context parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l ep -d 'expert parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l precision -d 'fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)' -x -a 'fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l fp8-recipe -d 'torchao'\''s, of fp8-mixed: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)' -x -a 'tensorwise rowwise rowwise_with_gw_hp'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l fp8-all-gather -d 'of fp8-mixed: FSDP2 gathers weights that are cast (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l param-dtype -d 'dtype the weights are loaded in (fp32 for mixed)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l grad-dtype -d 'of reduced gradients (the stack'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l reduce-dtype -d 'gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l master-weights -d 'fp32 masters beside 16-bit weights' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l fsdp-upcast -d 'Accelerate'\''s fp32 storage under FSDP (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l optimizer -d 'adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)' -x -a 'adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l optimizer-impl -d 'foreach, fused, for-loop (the stack'\''s)' -x -a 'foreach fused for-loop'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l galore-rank -d 'of the projected gradients (128)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l optimizer-in-backward -d 'step each parameter as its gradient comes'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l seq-len -d 'tokens (4096, at most what the model takes)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l micro-batch -d 'sequences per GPU and micro-step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l grad-accum -d 'micro-steps per step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l global-batch -d 'sequences per step of all GPUs, instead of --grad-accum' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l padding-mask -d 'rows hold padding, which an attention mask says (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l padding -d 'none; free: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)' -x -a 'none free longest max'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l packing -d 'of --data: no, wrapped, bfd, as TRL packs (no)' -x -a 'no wrapped bfd'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l pad-to-multiple-of -d 'of --data: rows are as long as a multiple (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l recompute -d 'none, selective (core_attn), full, sqrt, every:K (uniform:K), block:N (the first N), nth:N (every Nth), recursive:C, ops:NAME+NAME, fit, budget:SIZE (none)' -x -a 'none selective'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l use-reentrant -d 'of checkpoints (no; FSDP1'\''s old releases: yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l attention -d 'flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math' -x -a 'flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l loss -d 'full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)' -x -a 'full chunked fused tiled'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l lora-rank -d 'train adapters of this rank, freeze the rest' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l adapters -d 'LoRA: how many are loaded; one is trained (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l lora-alpha -d '(16)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l lora-targets -d 'all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l target-parameters -d 'mlp.experts.gate_up_proj,…: stacked experts with LoRA, of Transformers 5' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l feedforward-modules -d 'ia3: of the targets, those whose input is scaled; none (PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l virtual-tokens -d 'of a prompt, or of a prefix'\''s keys and values, beside --seq-len' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l encoder-hidden -d 'width of the perceptron: p-tuning (the model'\''s), prefix-tuning (it has none)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l lora-dropout -d '(0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l adapter-dtype -d 'fp32, bf16 (fp32)' -x -a 'fp32 bf16'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l modules-to-save -d 'embed_tokens,lm_head,…: train copies of these whole modules' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l lora-bias -d 'PEFT'\''s lora_bias (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l use-dora -d 'PEFT'\''s weight-decomposed adapters (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l quantize -d 'nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none): packs the frozen base' -x -a 'nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l quant-storage -d 'uint8, bf16, fp16, fp32: holds packed values (uint8)' -x -a 'uint8 bf16 fp16'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l kbit-prep -d 'PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l kbit-casting -d 'TRL'\''s peft_module_casting_to_bf16 behind it: all but norms in bf16 (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l freeze -d 'parameters that are not trained (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l train -d 'exceptions from --freeze (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l offload -d 'optimizer, gradients, params, activations: to the host' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l offload-to -d 'cpu, nvme, managed (cpu)' -x -a 'cpu nvme managed'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l offload-pin -d 'pin_memory of what is on the host (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l offload-optimizer-buffer-count -d 'deepspeed, nvme: offload_optimizer.buffer_count (4)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l offload-param-buffer-count -d 'deepspeed, nvme: offload_param.buffer_count (5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l offload-param-buffer-size -d 'deepspeed, nvme: offload_param.buffer_size, elements (1e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l offload-param-max-in-cpu -d 'deepspeed, nvme: parameters that leave their files (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l mode -d 'train, inference (train)' -x -a 'train inference'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l phase -d 'step; load: also what loading the model takes, which may be more; merge: what loading and merging the trained adapter takes, in a process of its own (step)' -x -a 'step load merge'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l device-map -d 'of --phase load, with AWQ or nothing packed: none, then model.to; auto: from_pretrained'\''s (none; of --phase merge auto)' -x -a 'none auto'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l batch -d 'inference: sequences' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l context -d 'inference: tokens' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l kv-dtype -d 'inference: of the key-value cache' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l deepspeed -d 'the user'\''s own ds_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l peft -d 'the user'\''s own adapter_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l accelerate -d 'the user'\''s own config.yaml of accelerate launch' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l training-args -d 'TrainingArguments as JSON or YAML, MODEL in it or not' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l axolotl -d 'the user'\''s own YAML of axolotl train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l llamafactory -d 'the user'\''s own YAML of llamafactory-cli train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l swift -d 'the arguments of swift sft (ms-swift) as YAML or JSON' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l torchtitan -d 'the user'\''s own TOML of torchtitan 0.2' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l trainer -d 'another program'\''s defaults: see `plimsoll trainers`' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l detail -d 'the whole timeline and every tensor in the JSON document'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l ranks -d 'as threads of this machine; the same as --gpus' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l reduce-layers -d 'only the model'\''s first layers, planned anew' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l prediction -d 'keep the plan that was made before the run' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l anyway -d 'although the plan says that it does not fit'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l steps -d 'optimizer steps (3)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l seconds -d 'and more steps, until they have taken so long (0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l profile -d 'one step more, timed kernel by kernel'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l seed -d 'of weights, dropout and rounding (42)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l lr -d 'learning rate (1e-4)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l warmup -d 'steps over which the learning rate grows from 0 (100)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l max-norm -d 'gradients are clipped to it; 0: they are not (1; with --optimizer-in-backward 0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l weight-decay -d '(0.01)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l weights -d 'safetensors to start from (drawn by the seed)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l adapter -d 'PEFT'\''s adapter to start from (drawn by the seed); of several each takes --steps steps on the one base, and is saved below its folder'\''s name' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l data -d 'a text, a .bin of token ids, or synthetic (the shipped text)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l save-weights -d 'write the trained weights as safetensors' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l save-merged -d 'write the model with its adapters merged, unpacked' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l save-packed -d 'write the packed base as bitsandbytes'\'' checkpoints have it' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l save-checkpoint -d 'write what --resume needs, when the run ends' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l save-every -d 'and every N steps; the one before stays until the new one is whole' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l resume -d 'go on from its checkpoint; --steps counts those made before' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l poison -d 'fill memory with NaN at its birth and death'
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l timeout -d 'a rank that keeps others waiting longer ends the job (600)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l html -d 'write a page with pictures; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from run' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a compare -d 'Do measurements agree with their prediction, tensor by tensor (where it was made with --detail) and category by category'
complete -c plimsoll -n '__fish_seen_subcommand_from compare' -F
complete -c plimsoll -n '__fish_seen_subcommand_from compare' -l html -d 'write a page with pictures; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from compare' -l published -d 'every published row of FOLDER (this program'\''s own), asked as its source states it: answered, refused, how far off'
complete -c plimsoll -n '__fish_seen_subcommand_from compare' -l svg -d 'of --published: planned against measured, as a picture' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from compare' -l tolerance -d 'of stacks that are estimated; plimsoll is exact (5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from compare' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from compare' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a report -d 'A plan, recommendation, measurement or comparison as a page with pictures'
complete -c plimsoll -n '__fish_seen_subcommand_from report' -F
complete -c plimsoll -n '__fish_seen_subcommand_from report' -l html -d 'write a page with pictures; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from report' -l trace -d 'memory by category and ops, for ui.perfetto.dev' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from report' -l memory-viz -d 'a snapshot for pytorch.org/memory_viz' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from report' -l rank -d 'whose step --trace and --memory-viz show (the first in the file)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from report' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from report' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a export -d 'A plan as the configuration of DeepSpeed, Accelerate, Transformers or Slurm'
complete -c plimsoll -n '__fish_seen_subcommand_from export' -F
complete -c plimsoll -n '__fish_seen_subcommand_from export' -l to -d 'deepspeed, accelerate, transformers, slurm, plimsoll (the plan itself)' -x -a 'deepspeed accelerate transformers slurm plimsoll'
complete -c plimsoll -n '__fish_seen_subcommand_from export' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from export' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a oom -d 'What was this out-of-memory error, and what is the cheapest way round it'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l params -d 'a bare parameter count (7.5e9, 7B) for MODEL: model states only' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l assume -d 'read the config as this model_type, whatever it says (llama)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l dropout -d 'of every dropout of the model: a rate, or config (config)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l task -d 'the head and its loss: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)' -x -a 'sft classification mlm dpo kto orpo reward grpo'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l gpu -d 'see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)' -x -a 'h100 rtx-4090'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l gpus -d 'world size (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l gpus-per-node -d '(8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l gpu-memory -d '80GB, 79.6GiB, bytes: what CUDA reports as total' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l intra-node-bandwidth -d 'per GPU, one direction (the catalog'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l inter-node-bandwidth -d 'per GPU, one direction (the vendor'\''s servers'\'')' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l reserve -d 'kept free (0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l host-memory -d 'of a node, for what is offloaded: 256GiB (not judged)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l calibration -d 'overheads as tools/evidence fit measured them (built in)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l stack -d 'plimsoll, pytorch, deepspeed, megatron (pytorch)' -x -a 'plimsoll pytorch deepspeed megatron'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l device -d 'cuda, cpu (cuda; cpu only with plimsoll)' -x -a 'cuda cpu'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l compile -d 'torch.compile of each block, or of the model (no; alone: block)'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l kernels -d 'eager, liger, unsloth, fused (eager)' -x -a 'eager liger fused unsloth'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l torch-version -d '2.4 to 2.11 (2.11)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l allocator-conf -d 'PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l hold-outputs -d 'the loop keeps the model'\''s outputs until after backward'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l transformers-version -d '4.45 to 5.23 (5.17)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l bitsandbytes-version -d '0.41 to 0.50 (0.50.2)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l model-code -d 'transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13: whose forward (transformers)' -x -a 'transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l zero -d '0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP' -x -a '0 1 2 3'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l fsdp-activation-checkpointing -d 'FSDP1: checkpoints inside its units (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l fsdp-sync-module-states -d 'FSDP1: rank 0 sends each unit as it is wrapped (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l fsdp-use-orig-params -d 'FSDP1: the optimizer steps original parameters (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l fsdp-version -d '1, 2 (2)' -x -a '1 2'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l shard-group -d 'hybrid sharding inside groups of N (all ranks)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l reduce-bucket -d 'plimsoll: bytes of one gradient bucket (25MiB)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l data-parallel -d 'ddp: a process for each GPU; dp: torch.nn.DataParallel, one process (ddp)' -x -a 'ddp dp'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l bucket-cap-mb -d 'DDP'\''s bucket_cap_mb (25)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l gradient-as-bucket-view -d 'DDP'\''s own knob (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l reduce-bucket-size -d 'deepspeed: elements of a bucket (5e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l overlap-comm -d 'deepspeed: two buckets (yes with --zero 3)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l round-robin-gradients -d 'deepspeed --zero 1, 2: ranks own parameters in turn (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l sub-group-size -d 'deepspeed --zero 3: elements of one step (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l stage3-prefetch-bucket-size -d 'deepspeed (5e7)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l stage3-param-persistence-threshold -d 'deepspeed (1e5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l stage3-max-live-parameters -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l stage3-max-reuse-distance -d 'deepspeed (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l prefetch -d 'units gathered ahead' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l deterministic -d 'plimsoll: all stages reduce at the same moments'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l exchange -d 'plimsoll: nccl (GPUs), mpi or threads (the host)' -x -a 'threads mpi nccl'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l tp -d 'tensor parallel ranks, of torchtitan (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l sequence-parallel -d 'shard what tensor parallelism replicates'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l pp -d 'pipeline stages (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l pp-schedule -d 'gpipe, 1f1b, interleaved, zero-bubble' -x -a 'gpipe 1f1b interleaved zero-bubble'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l virtual-stages -d 'stages per pipeline rank (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l cp -d 'context parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l ep -d 'expert parallel ranks (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l precision -d 'fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)' -x -a 'fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l fp8-recipe -d 'torchao'\''s, of fp8-mixed: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)' -x -a 'tensorwise rowwise rowwise_with_gw_hp'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l fp8-all-gather -d 'of fp8-mixed: FSDP2 gathers weights that are cast (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l param-dtype -d 'dtype the weights are loaded in (fp32 for mixed)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l grad-dtype -d 'of reduced gradients (the stack'\''s)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l reduce-dtype -d 'gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l master-weights -d 'fp32 masters beside 16-bit weights' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l fsdp-upcast -d 'Accelerate'\''s fp32 storage under FSDP (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l optimizer -d 'adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)' -x -a 'adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l optimizer-impl -d 'foreach, fused, for-loop (the stack'\''s)' -x -a 'foreach fused for-loop'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l galore-rank -d 'of the projected gradients (128)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l optimizer-in-backward -d 'step each parameter as its gradient comes'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l seq-len -d 'tokens (4096, at most what the model takes)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l micro-batch -d 'sequences per GPU and micro-step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l grad-accum -d 'micro-steps per step (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l global-batch -d 'sequences per step of all GPUs, instead of --grad-accum' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l padding-mask -d 'rows hold padding, which an attention mask says (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l data -d 'lengths: JSONL with input_ids, length or num_tokens, or CSV of length,count; planned is the worst batch' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l padding -d 'none; free: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)' -x -a 'none free longest max'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l packing -d 'of --data: no, wrapped, bfd, as TRL packs (no)' -x -a 'no wrapped bfd'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l pad-to-multiple-of -d 'of --data: rows are as long as a multiple (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l recompute -d 'none, selective (core_attn), full, sqrt, every:K (uniform:K), block:N (the first N), nth:N (every Nth), recursive:C, ops:NAME+NAME, fit, budget:SIZE (none)' -x -a 'none selective'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l use-reentrant -d 'of checkpoints (no; FSDP1'\''s old releases: yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l attention -d 'flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math' -x -a 'flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l loss -d 'full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)' -x -a 'full chunked fused tiled'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l adapter -d 'lora, ia3, vera, prompt-tuning, p-tuning, prefix-tuning (lora, with --lora-rank)' -x -a 'lora ia3 vera prompt-tuning p-tuning prefix-tuning'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l lora-rank -d 'train adapters of this rank, freeze the rest' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l adapters -d 'LoRA: how many are loaded; one is trained (1)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l lora-alpha -d '(16)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l lora-targets -d 'all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l target-parameters -d 'mlp.experts.gate_up_proj,…: stacked experts with LoRA, of Transformers 5' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l feedforward-modules -d 'ia3: of the targets, those whose input is scaled; none (PEFT'\''s own)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l virtual-tokens -d 'of a prompt, or of a prefix'\''s keys and values, beside --seq-len' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l encoder-hidden -d 'width of the perceptron: p-tuning (the model'\''s), prefix-tuning (it has none)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l lora-dropout -d '(0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l adapter-dtype -d 'fp32, bf16 (fp32)' -x -a 'fp32 bf16'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l modules-to-save -d 'embed_tokens,lm_head,…: train copies of these whole modules' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l lora-bias -d 'PEFT'\''s lora_bias (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l use-dora -d 'PEFT'\''s weight-decomposed adapters (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l quantize -d 'nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none): packs the frozen base' -x -a 'nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l quant-storage -d 'uint8, bf16, fp16, fp32: holds packed values (uint8)' -x -a 'uint8 bf16 fp16'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l kbit-prep -d 'PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l kbit-casting -d 'TRL'\''s peft_module_casting_to_bf16 behind it: all but norms in bf16 (no)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l freeze -d 'parameters that are not trained (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l train -d 'exceptions from --freeze (repeatable)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l offload -d 'optimizer, gradients, params, activations: to the host' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l offload-to -d 'cpu, nvme, managed (cpu)' -x -a 'cpu nvme managed'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l offload-pin -d 'pin_memory of what is on the host (yes)' -x -a 'yes no'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l offload-optimizer-buffer-count -d 'deepspeed, nvme: offload_optimizer.buffer_count (4)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l offload-param-buffer-count -d 'deepspeed, nvme: offload_param.buffer_count (5)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l offload-param-buffer-size -d 'deepspeed, nvme: offload_param.buffer_size, elements (1e8)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l offload-param-max-in-cpu -d 'deepspeed, nvme: parameters that leave their files (1e9)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l mode -d 'train, inference (train)' -x -a 'train inference'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l phase -d 'step; load: also what loading the model takes, which may be more; merge: what loading and merging the trained adapter takes, in a process of its own (step)' -x -a 'step load merge'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l device-map -d 'of --phase load, with AWQ or nothing packed: none, then model.to; auto: from_pretrained'\''s (none; of --phase merge auto)' -x -a 'none auto'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l batch -d 'inference: sequences' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l context -d 'inference: tokens' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l kv-dtype -d 'inference: of the key-value cache' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l deepspeed -d 'the user'\''s own ds_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l peft -d 'the user'\''s own adapter_config.json' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l accelerate -d 'the user'\''s own config.yaml of accelerate launch' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l training-args -d 'TrainingArguments as JSON or YAML, MODEL in it or not' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l axolotl -d 'the user'\''s own YAML of axolotl train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l llamafactory -d 'the user'\''s own YAML of llamafactory-cli train' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l swift -d 'the arguments of swift sft (ms-swift) as YAML or JSON' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l torchtitan -d 'the user'\''s own TOML of torchtitan 0.2' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l trainer -d 'another program'\''s defaults: see `plimsoll trainers`' -x
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l detail -d 'the whole timeline and every tensor in the JSON document'
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from oom' -l quiet -d 'no table, no notes'
complete -c plimsoll -n __fish_use_subcommand -a check -d 'Did a change cost memory'
complete -c plimsoll -n '__fish_seen_subcommand_from check' -F
complete -c plimsoll -n '__fish_seen_subcommand_from check' -l against -d 'what the plans were (without it nothing is compared)' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from check' -l max-growth -d 'of each figure, as in 2% (0)' -x
complete -c plimsoll -n '__fish_seen_subcommand_from check' -l junit -d 'a test report, a case for each plan' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from check' -l github -d 'annotations of GitHub Actions (where it runs them, by itself)'
complete -c plimsoll -n '__fish_seen_subcommand_from check' -l json -d 'write the JSON document; - for standard output' -r -F
complete -c plimsoll -n '__fish_seen_subcommand_from check' -l quiet -d 'no table, no notes'
