#compdef plimsoll
# zsh completion of plimsoll, made from its option table
_plimsoll() {
  local -a commands
  commands=(
    'fit:Will it fit, where does the memory go, and at which moment is the peak'
    'batch:Many fit queries (- for standard input)'
    'models:The models that are known by name'
    'gpus:The GPUs that are known by name'
    'trainers:Training programs whose defaults --trainer takes'
    'recommend:How should it run on these GPUs'
    'run:Executes training steps for real on our own runtime'
    'compare:Do measurements agree with their prediction, tensor by tensor (where it was made with --detail) and category by category'
    'report:A plan, recommendation, measurement or comparison as a page with pictures'
    'export:A plan as the configuration of DeepSpeed, Accelerate, Transformers or Slurm'
    'oom:What was this out-of-memory error, and what is the cheapest way round it'
    'check:Did a change cost memory'
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
    fit)
      _arguments \
        '--help[the options of this command]' \
        '--params=[a bare parameter count (7.5e9, 7B) for MODEL\: model states only]:N:' \
        '--assume=[read the config as this model_type, whatever it says (llama)]:TYPE:' \
        '--dropout=[of every dropout of the model\: a rate, or config (config)]:P:' \
        '--task=[the head and its loss\: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)]:NAME:(sft classification mlm dpo kto orpo reward grpo)' \
        '--gpu=[see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)]:NAME:(h100 rtx-4090)' \
        '--gpus=[world size (1)]:N:' \
        '--gpus-per-node=[(8)]:N:' \
        '--gpu-memory=[80GB, 79.6GiB, bytes\: what CUDA reports as total]:SIZE:' \
        '--intra-node-bandwidth=[per GPU, one direction (the catalog'\''s)]:GB/S:' \
        '--inter-node-bandwidth=[per GPU, one direction (the vendor'\''s servers'\'')]:GB/S:' \
        '--reserve=[kept free (0)]:SIZE:' \
        '--host-memory=[of a node, for what is offloaded\: 256GiB (not judged)]:SIZE:' \
        '--calibration=[overheads as tools/evidence fit measured them (built in)]:FILE:_files' \
        '--stack=[plimsoll, pytorch, deepspeed, megatron (pytorch)]:NAME:(plimsoll pytorch deepspeed megatron)' \
        '--device=[cuda, cpu (cuda; cpu only with plimsoll)]:NAME:(cuda cpu)' \
        '--compile[torch.compile of each block, or of the model (no; alone\: block)]:\[REGION\]:(no block model)' \
        '--kernels=[eager, liger, unsloth, fused (eager)]:NAME:(eager liger fused unsloth)' \
        '--torch-version=[2.4 to 2.11 (2.11)]:V:' \
        '--allocator-conf=[PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax]:TEXT:' \
        '--hold-outputs[the loop keeps the model'\''s outputs until after backward]' \
        '--transformers-version=[4.45 to 5.23 (5.17)]:V:' \
        '--bitsandbytes-version=[0.41 to 0.50 (0.50.2)]:V:' \
        '--model-code=[transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13\: whose forward (transformers)]:NAME:(transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13)' \
        '--zero=[0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP]:STAGE:(0 1 2 3)' \
        '--fsdp-activation-checkpointing=[FSDP1\: checkpoints inside its units (no)]:YES|NO:(yes no)' \
        '--fsdp-sync-module-states=[FSDP1\: rank 0 sends each unit as it is wrapped (no)]:YES|NO:(yes no)' \
        '--fsdp-use-orig-params=[FSDP1\: the optimizer steps original parameters (yes)]:YES|NO:(yes no)' \
        '--fsdp-version=[1, 2 (2)]:V:(1 2)' \
        '--shard-group=[hybrid sharding inside groups of N (all ranks)]:N:' \
        '--reduce-bucket=[plimsoll\: bytes of one gradient bucket (25MiB)]:SIZE:' \
        '--data-parallel=[ddp\: a process for each GPU; dp\: torch.nn.DataParallel, one process (ddp)]:KIND:(ddp dp)' \
        '--bucket-cap-mb=[DDP'\''s bucket_cap_mb (25)]:MIB:' \
        '--gradient-as-bucket-view=[DDP'\''s own knob (no)]:YES|NO:(yes no)' \
        '--reduce-bucket-size=[deepspeed\: elements of a bucket (5e8)]:N:' \
        '--overlap-comm=[deepspeed\: two buckets (yes with --zero 3)]:YES|NO:(yes no)' \
        '--round-robin-gradients=[deepspeed --zero 1, 2\: ranks own parameters in turn (no)]:YES|NO:(yes no)' \
        '--sub-group-size=[deepspeed --zero 3\: elements of one step (1e9)]:N:' \
        '--stage3-prefetch-bucket-size=[deepspeed (5e7)]:N:' \
        '--stage3-param-persistence-threshold=[deepspeed (1e5)]:N:' \
        '--stage3-max-live-parameters=[deepspeed (1e9)]:N:' \
        '--stage3-max-reuse-distance=[deepspeed (1e9)]:N:' \
        '--prefetch=[units gathered ahead]:N:' \
        '--deterministic[plimsoll\: all stages reduce at the same moments]' \
        '--exchange=[plimsoll\: nccl (GPUs), mpi or threads (the host)]:NAME:(threads mpi nccl)' \
        '--tp=[tensor parallel ranks, of torchtitan (1)]:N:' \
        '--sequence-parallel[shard what tensor parallelism replicates]' \
        '--pp=[pipeline stages (1)]:N:' \
        '--pp-schedule=[gpipe, 1f1b, interleaved, zero-bubble]:NAME:(gpipe 1f1b interleaved zero-bubble)' \
        '--virtual-stages=[stages per pipeline rank (1)]:N:' \
        '--cp=[context parallel ranks (1)]:N:' \
        '--ep=[expert parallel ranks (1)]:N:' \
        '--precision=[fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)]:KIND:(fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed)' \
        '--fp8-recipe=[torchao'\''s, of fp8-mixed\: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)]:NAME:(tensorwise rowwise rowwise_with_gw_hp)' \
        '--fp8-all-gather=[of fp8-mixed\: FSDP2 gathers weights that are cast (no)]:YES|NO:(yes no)' \
        '--param-dtype=[dtype the weights are loaded in (fp32 for mixed)]:DTYPE:' \
        '--grad-dtype=[of reduced gradients (the stack'\''s)]:DTYPE:' \
        '--reduce-dtype=[gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype]:DTYPE:' \
        '--master-weights=[fp32 masters beside 16-bit weights]:YES|NO:(yes no)' \
        '--fsdp-upcast=[Accelerate'\''s fp32 storage under FSDP (yes)]:YES|NO:(yes no)' \
        '--optimizer=[adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)]:NAME:(adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo)' \
        '--optimizer-impl=[foreach, fused, for-loop (the stack'\''s)]:KIND:(foreach fused for-loop)' \
        '--galore-rank=[of the projected gradients (128)]:N:' \
        '--optimizer-in-backward[step each parameter as its gradient comes]' \
        '--seq-len=[tokens (4096, at most what the model takes)]:N:' \
        '--micro-batch=[sequences per GPU and micro-step (1)]:N:' \
        '--grad-accum=[micro-steps per step (1)]:N:' \
        '--global-batch=[sequences per step of all GPUs, instead of --grad-accum]:N:' \
        '--padding-mask=[rows hold padding, which an attention mask says (no)]:YES|NO:(yes no)' \
        '--data=[lengths\: JSONL with input_ids, length or num_tokens, or CSV of length,count; planned is the worst batch]:FILE:_files' \
        '--padding=[none; free\: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)]:KIND:(none free longest max)' \
        '--packing=[of --data\: no, wrapped, bfd, as TRL packs (no)]:KIND:(no wrapped bfd)' \
        '--pad-to-multiple-of=[of --data\: rows are as long as a multiple (1)]:N:' \
        '--recompute=[none, selective (core_attn), full, sqrt, every\:K (uniform\:K), block\:N (the first N), nth\:N (every Nth), recursive\:C, ops\:NAME+NAME, fit, budget\:SIZE (none)]:KIND:(none selective)' \
        '--use-reentrant=[of checkpoints (no; FSDP1'\''s old releases\: yes)]:YES|NO:(yes no)' \
        '--attention=[flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math]:KIND:(flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers)' \
        '--loss=[full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)]:KIND:(full chunked fused tiled)' \
        '--adapter=[lora, ia3, vera, prompt-tuning, p-tuning, prefix-tuning (lora, with --lora-rank)]:KIND:(lora ia3 vera prompt-tuning p-tuning prefix-tuning)' \
        '--lora-rank=[train adapters of this rank, freeze the rest]:R:' \
        '--adapters=[LoRA\: how many are loaded; one is trained (1)]:N:' \
        '--lora-alpha=[(16)]:A:' \
        '--lora-targets=[all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)]:LIST:' \
        '--target-parameters=[mlp.experts.gate_up_proj,…\: stacked experts with LoRA, of Transformers 5]:LIST:' \
        '--feedforward-modules=[ia3\: of the targets, those whose input is scaled; none (PEFT'\''s own)]:LIST:' \
        '--virtual-tokens=[of a prompt, or of a prefix'\''s keys and values, beside --seq-len]:N:' \
        '--encoder-hidden=[width of the perceptron\: p-tuning (the model'\''s), prefix-tuning (it has none)]:N:' \
        '--lora-dropout=[(0)]:P:' \
        '--adapter-dtype=[fp32, bf16 (fp32)]:DTYPE:(fp32 bf16)' \
        '--modules-to-save=[embed_tokens,lm_head,…\: train copies of these whole modules]:LIST:' \
        '--lora-bias=[PEFT'\''s lora_bias (no)]:YES|NO:(yes no)' \
        '--use-dora=[PEFT'\''s weight-decomposed adapters (no)]:YES|NO:(yes no)' \
        '--quantize=[nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none)\: packs the frozen base]:KIND:(nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8)' \
        '--quant-storage=[uint8, bf16, fp16, fp32\: holds packed values (uint8)]:DTYPE:(uint8 bf16 fp16)' \
        '--kbit-prep=[PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)]:YES|NO:(yes no)' \
        '--kbit-casting=[TRL'\''s peft_module_casting_to_bf16 behind it\: all but norms in bf16 (no)]:YES|NO:(yes no)' \
        '*--freeze=[parameters that are not trained (repeatable)]:PATTERN:' \
        '*--train=[exceptions from --freeze (repeatable)]:PATTERN:' \
        '--offload=[optimizer, gradients, params, activations\: to the host]:LIST:' \
        '--offload-to=[cpu, nvme, managed (cpu)]:NAME:(cpu nvme managed)' \
        '--offload-pin=[pin_memory of what is on the host (yes)]:YES|NO:(yes no)' \
        '--offload-optimizer-buffer-count=[deepspeed, nvme\: offload_optimizer.buffer_count (4)]:N:' \
        '--offload-param-buffer-count=[deepspeed, nvme\: offload_param.buffer_count (5)]:N:' \
        '--offload-param-buffer-size=[deepspeed, nvme\: offload_param.buffer_size, elements (1e8)]:N:' \
        '--offload-param-max-in-cpu=[deepspeed, nvme\: parameters that leave their files (1e9)]:N:' \
        '--mode=[train, inference (train)]:NAME:(train inference)' \
        '--phase=[step; load\: also what loading the model takes, which may be more; merge\: what loading and merging the trained adapter takes, in a process of its own (step)]:NAME:(step load merge)' \
        '--device-map=[of --phase load, with AWQ or nothing packed\: none, then model.to; auto\: from_pretrained'\''s (none; of --phase merge auto)]:NAME:(none auto)' \
        '--batch=[inference\: sequences]:N:' \
        '--context=[inference\: tokens]:N:' \
        '--kv-dtype=[inference\: of the key-value cache]:DTYPE:' \
        '--deepspeed=[the user'\''s own ds_config.json]:FILE:_files' \
        '--peft=[the user'\''s own adapter_config.json]:FILE:_files' \
        '--accelerate=[the user'\''s own config.yaml of accelerate launch]:FILE:_files' \
        '--training-args=[TrainingArguments as JSON or YAML, MODEL in it or not]:FILE:_files' \
        '--axolotl=[the user'\''s own YAML of axolotl train]:FILE:_files' \
        '--llamafactory=[the user'\''s own YAML of llamafactory-cli train]:FILE:_files' \
        '--swift=[the arguments of swift sft (ms-swift) as YAML or JSON]:FILE:_files' \
        '--torchtitan=[the user'\''s own TOML of torchtitan 0.2]:FILE:_files' \
        '--trainer=[another program'\''s defaults\: see `plimsoll trainers`]:NAME\[@VERSION\]:' \
        '--detail[the whole timeline and every tensor in the JSON document]' \
        '--html=[write a page with pictures; - for standard output]:FILE:_files' \
        '--explain[how the figures come about\: of the plan (all), of the time (time), of a tensor]:\[TENSOR\]:' \
        '--plot[draw memory over the step below the table]' \
        '--svg=[memory over the step as a picture]:FILE:_files' \
        '--trace=[memory by category and ops, for ui.perfetto.dev]:FILE:_files' \
        '--memory-viz=[a snapshot for pytorch.org/memory_viz]:FILE:_files' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '1:MODEL:_alternative "names:MODEL:(gpt2 llama-3.1-8b)" "files:file:_files"' '*:file:_files' ;;
    batch)
      _arguments \
        '--help[the options of this command]' \
        '--html=[write a page with pictures; - for standard output]:FILE:_files' \
        '--fields=[only these of each plan, as in peak_bytes,verdict,time.step_seconds]:LIST:' \
        '--csv[a table with a header (of --fields, or of the usual ones)]' \
        '--markdown[the same for GitHub and wikis (--html\: as a page)]' \
        '--threads=[(all cores)]:N:' \
        '--fleet=[pools of GPUs with counts and prices, and jobs (those of QUERIES.jsonl too)\: which job fits where, who goes where, what to buy]:FILE:_files' \
        '--solver-seconds=[for each assignment of --fleet (10)]:N:' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    models)
      _arguments \
        '--help[the options of this command]' \
        '--html=[a page with what trains on what, and how; - for standard output (a minute)]:FILE:_files' \
        '--search=[only those with TEXT in a name or an alias]:TEXT:' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    gpus)
      _arguments \
        '--help[the options of this command]' \
        '--html=[a page with what trains on what, and how; - for standard output (a minute)]:FILE:_files' \
        '--search=[only those with TEXT in a name or an alias]:TEXT:' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    trainers)
      _arguments \
        '--help[the options of this command]' \
        '--html=[a page with what trains on what, and how; - for standard output (a minute)]:FILE:_files' \
        '--search=[only those with TEXT in a name or an alias]:TEXT:' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    recommend)
      _arguments \
        '--help[the options of this command]' \
        '--params=[a bare parameter count (7.5e9, 7B) for MODEL\: model states only]:N:' \
        '--assume=[read the config as this model_type, whatever it says (llama)]:TYPE:' \
        '--dropout=[of every dropout of the model\: a rate, or config (config)]:P:' \
        '--task=[the head and its loss\: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)]:NAME:(sft classification mlm dpo kto orpo reward grpo)' \
        '--gpu=[see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)]:NAME:(h100 rtx-4090)' \
        '--gpus=[world size (1)]:N:' \
        '--gpus-per-node=[(8)]:N:' \
        '--gpu-memory=[80GB, 79.6GiB, bytes\: what CUDA reports as total]:SIZE:' \
        '--intra-node-bandwidth=[per GPU, one direction (the catalog'\''s)]:GB/S:' \
        '--inter-node-bandwidth=[per GPU, one direction (the vendor'\''s servers'\'')]:GB/S:' \
        '--reserve=[kept free (0)]:SIZE:' \
        '--host-memory=[of a node, for what is offloaded\: 256GiB (not judged)]:SIZE:' \
        '--calibration=[overheads as tools/evidence fit measured them (built in)]:FILE:_files' \
        '--stack=[plimsoll, pytorch, deepspeed, megatron (pytorch)]:NAME:(plimsoll pytorch deepspeed megatron)' \
        '--device=[cuda, cpu (cuda; cpu only with plimsoll)]:NAME:(cuda cpu)' \
        '--compile[torch.compile of each block, or of the model (no; alone\: block)]:\[REGION\]:(no block model)' \
        '--kernels=[eager, liger, unsloth, fused (eager)]:NAME:(eager liger fused unsloth)' \
        '--torch-version=[2.4 to 2.11 (2.11)]:V:' \
        '--allocator-conf=[PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax]:TEXT:' \
        '--hold-outputs[the loop keeps the model'\''s outputs until after backward]' \
        '--transformers-version=[4.45 to 5.23 (5.17)]:V:' \
        '--bitsandbytes-version=[0.41 to 0.50 (0.50.2)]:V:' \
        '--model-code=[transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13\: whose forward (transformers)]:NAME:(transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13)' \
        '--zero=[0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP]:STAGE:(0 1 2 3)' \
        '--fsdp-activation-checkpointing=[FSDP1\: checkpoints inside its units (no)]:YES|NO:(yes no)' \
        '--fsdp-sync-module-states=[FSDP1\: rank 0 sends each unit as it is wrapped (no)]:YES|NO:(yes no)' \
        '--fsdp-use-orig-params=[FSDP1\: the optimizer steps original parameters (yes)]:YES|NO:(yes no)' \
        '--fsdp-version=[1, 2 (2)]:V:(1 2)' \
        '--shard-group=[hybrid sharding inside groups of N (all ranks)]:N:' \
        '--reduce-bucket=[plimsoll\: bytes of one gradient bucket (25MiB)]:SIZE:' \
        '--data-parallel=[ddp\: a process for each GPU; dp\: torch.nn.DataParallel, one process (ddp)]:KIND:(ddp dp)' \
        '--bucket-cap-mb=[DDP'\''s bucket_cap_mb (25)]:MIB:' \
        '--gradient-as-bucket-view=[DDP'\''s own knob (no)]:YES|NO:(yes no)' \
        '--reduce-bucket-size=[deepspeed\: elements of a bucket (5e8)]:N:' \
        '--overlap-comm=[deepspeed\: two buckets (yes with --zero 3)]:YES|NO:(yes no)' \
        '--round-robin-gradients=[deepspeed --zero 1, 2\: ranks own parameters in turn (no)]:YES|NO:(yes no)' \
        '--sub-group-size=[deepspeed --zero 3\: elements of one step (1e9)]:N:' \
        '--stage3-prefetch-bucket-size=[deepspeed (5e7)]:N:' \
        '--stage3-param-persistence-threshold=[deepspeed (1e5)]:N:' \
        '--stage3-max-live-parameters=[deepspeed (1e9)]:N:' \
        '--stage3-max-reuse-distance=[deepspeed (1e9)]:N:' \
        '--prefetch=[units gathered ahead]:N:' \
        '--deterministic[plimsoll\: all stages reduce at the same moments]' \
        '--exchange=[plimsoll\: nccl (GPUs), mpi or threads (the host)]:NAME:(threads mpi nccl)' \
        '--tp=[tensor parallel ranks, of torchtitan (1)]:N:' \
        '--sequence-parallel[shard what tensor parallelism replicates]' \
        '--pp=[pipeline stages (1)]:N:' \
        '--pp-schedule=[gpipe, 1f1b, interleaved, zero-bubble]:NAME:(gpipe 1f1b interleaved zero-bubble)' \
        '--virtual-stages=[stages per pipeline rank (1)]:N:' \
        '--cp=[context parallel ranks (1)]:N:' \
        '--ep=[expert parallel ranks (1)]:N:' \
        '--precision=[fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)]:KIND:(fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed)' \
        '--fp8-recipe=[torchao'\''s, of fp8-mixed\: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)]:NAME:(tensorwise rowwise rowwise_with_gw_hp)' \
        '--fp8-all-gather=[of fp8-mixed\: FSDP2 gathers weights that are cast (no)]:YES|NO:(yes no)' \
        '--param-dtype=[dtype the weights are loaded in (fp32 for mixed)]:DTYPE:' \
        '--grad-dtype=[of reduced gradients (the stack'\''s)]:DTYPE:' \
        '--reduce-dtype=[gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype]:DTYPE:' \
        '--master-weights=[fp32 masters beside 16-bit weights]:YES|NO:(yes no)' \
        '--fsdp-upcast=[Accelerate'\''s fp32 storage under FSDP (yes)]:YES|NO:(yes no)' \
        '--optimizer=[adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)]:NAME:(adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo)' \
        '--optimizer-impl=[foreach, fused, for-loop (the stack'\''s)]:KIND:(foreach fused for-loop)' \
        '--galore-rank=[of the projected gradients (128)]:N:' \
        '--optimizer-in-backward[step each parameter as its gradient comes]' \
        '--seq-len=[tokens (4096, at most what the model takes)]:N:' \
        '--micro-batch=[sequences per GPU and micro-step (1)]:N:' \
        '--grad-accum=[micro-steps per step (1)]:N:' \
        '--global-batch=[sequences per step of all GPUs, instead of --grad-accum]:N:' \
        '--padding-mask=[rows hold padding, which an attention mask says (no)]:YES|NO:(yes no)' \
        '--data=[lengths\: JSONL with input_ids, length or num_tokens, or CSV of length,count; planned is the worst batch]:FILE:_files' \
        '--padding=[none; free\: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)]:KIND:(none free longest max)' \
        '--packing=[of --data\: no, wrapped, bfd, as TRL packs (no)]:KIND:(no wrapped bfd)' \
        '--pad-to-multiple-of=[of --data\: rows are as long as a multiple (1)]:N:' \
        '--recompute=[none, selective (core_attn), full, sqrt, every\:K (uniform\:K), block\:N (the first N), nth\:N (every Nth), recursive\:C, ops\:NAME+NAME, fit, budget\:SIZE (none)]:KIND:(none selective)' \
        '--use-reentrant=[of checkpoints (no; FSDP1'\''s old releases\: yes)]:YES|NO:(yes no)' \
        '--attention=[flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math]:KIND:(flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers)' \
        '--loss=[full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)]:KIND:(full chunked fused tiled)' \
        '--adapter=[lora, ia3, vera, prompt-tuning, p-tuning, prefix-tuning (lora, with --lora-rank)]:KIND:(lora ia3 vera prompt-tuning p-tuning prefix-tuning)' \
        '--lora-rank=[train adapters of this rank, freeze the rest]:R:' \
        '--adapters=[LoRA\: how many are loaded; one is trained (1)]:N:' \
        '--lora-alpha=[(16)]:A:' \
        '--lora-targets=[all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)]:LIST:' \
        '--target-parameters=[mlp.experts.gate_up_proj,…\: stacked experts with LoRA, of Transformers 5]:LIST:' \
        '--feedforward-modules=[ia3\: of the targets, those whose input is scaled; none (PEFT'\''s own)]:LIST:' \
        '--virtual-tokens=[of a prompt, or of a prefix'\''s keys and values, beside --seq-len]:N:' \
        '--encoder-hidden=[width of the perceptron\: p-tuning (the model'\''s), prefix-tuning (it has none)]:N:' \
        '--lora-dropout=[(0)]:P:' \
        '--adapter-dtype=[fp32, bf16 (fp32)]:DTYPE:(fp32 bf16)' \
        '--modules-to-save=[embed_tokens,lm_head,…\: train copies of these whole modules]:LIST:' \
        '--lora-bias=[PEFT'\''s lora_bias (no)]:YES|NO:(yes no)' \
        '--use-dora=[PEFT'\''s weight-decomposed adapters (no)]:YES|NO:(yes no)' \
        '--quantize=[nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none)\: packs the frozen base]:KIND:(nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8)' \
        '--quant-storage=[uint8, bf16, fp16, fp32\: holds packed values (uint8)]:DTYPE:(uint8 bf16 fp16)' \
        '--kbit-prep=[PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)]:YES|NO:(yes no)' \
        '--kbit-casting=[TRL'\''s peft_module_casting_to_bf16 behind it\: all but norms in bf16 (no)]:YES|NO:(yes no)' \
        '*--freeze=[parameters that are not trained (repeatable)]:PATTERN:' \
        '*--train=[exceptions from --freeze (repeatable)]:PATTERN:' \
        '--offload=[optimizer, gradients, params, activations\: to the host]:LIST:' \
        '--offload-to=[cpu, nvme, managed (cpu)]:NAME:(cpu nvme managed)' \
        '--offload-pin=[pin_memory of what is on the host (yes)]:YES|NO:(yes no)' \
        '--offload-optimizer-buffer-count=[deepspeed, nvme\: offload_optimizer.buffer_count (4)]:N:' \
        '--offload-param-buffer-count=[deepspeed, nvme\: offload_param.buffer_count (5)]:N:' \
        '--offload-param-buffer-size=[deepspeed, nvme\: offload_param.buffer_size, elements (1e8)]:N:' \
        '--offload-param-max-in-cpu=[deepspeed, nvme\: parameters that leave their files (1e9)]:N:' \
        '--mode=[train, inference (train)]:NAME:(train inference)' \
        '--phase=[step; load\: also what loading the model takes, which may be more; merge\: what loading and merging the trained adapter takes, in a process of its own (step)]:NAME:(step load merge)' \
        '--device-map=[of --phase load, with AWQ or nothing packed\: none, then model.to; auto\: from_pretrained'\''s (none; of --phase merge auto)]:NAME:(none auto)' \
        '--batch=[inference\: sequences]:N:' \
        '--context=[inference\: tokens]:N:' \
        '--kv-dtype=[inference\: of the key-value cache]:DTYPE:' \
        '--deepspeed=[the user'\''s own ds_config.json]:FILE:_files' \
        '--peft=[the user'\''s own adapter_config.json]:FILE:_files' \
        '--accelerate=[the user'\''s own config.yaml of accelerate launch]:FILE:_files' \
        '--training-args=[TrainingArguments as JSON or YAML, MODEL in it or not]:FILE:_files' \
        '--axolotl=[the user'\''s own YAML of axolotl train]:FILE:_files' \
        '--llamafactory=[the user'\''s own YAML of llamafactory-cli train]:FILE:_files' \
        '--swift=[the arguments of swift sft (ms-swift) as YAML or JSON]:FILE:_files' \
        '--torchtitan=[the user'\''s own TOML of torchtitan 0.2]:FILE:_files' \
        '--trainer=[another program'\''s defaults\: see `plimsoll trainers`]:NAME\[@VERSION\]:' \
        '--detail[the whole timeline and every tensor in the JSON document]' \
        '--html=[write a page with pictures; - for standard output]:FILE:_files' \
        '--objective=[throughput, gpus (fewest), context (longest), batch (largest), memory (least) (throughput)]:NAME:(throughput gpus)' \
        '--keep=[axes that stay as given\: precision, optimizer, stack, zero, …]:LIST:' \
        '--only=[values that may be taken\: zero=2,zero=3,stack=pytorch]:LIST:' \
        '--without=[values that may not\: adapters=lora,recompute=every]:LIST:' \
        '--min-headroom=[free on each GPU (enough for all assumed overheads at their high end)]:SIZE:' \
        '--tokens=[a compute budget, as in 15e12\: GPU-days of each plan]:N:' \
        '--top=[approaches to list (5)]:N:' \
        '--threads=[(all cores)]:N:' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '1:MODEL:_alternative "names:MODEL:(gpt2 llama-3.1-8b)" "files:file:_files"' '*:file:_files' ;;
    run)
      _arguments \
        '--help[the options of this command]' \
        '--params=[a bare parameter count (7.5e9, 7B) for MODEL\: model states only]:N:' \
        '--assume=[read the config as this model_type, whatever it says (llama)]:TYPE:' \
        '--dropout=[of every dropout of the model\: a rate, or config (config)]:P:' \
        '--task=[the head and its loss\: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)]:NAME:(sft classification mlm dpo kto orpo reward grpo)' \
        '--gpu=[see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)]:NAME:(h100 rtx-4090)' \
        '--gpus=[world size (1)]:N:' \
        '--gpus-per-node=[(8)]:N:' \
        '--gpu-memory=[80GB, 79.6GiB, bytes\: what CUDA reports as total]:SIZE:' \
        '--intra-node-bandwidth=[per GPU, one direction (the catalog'\''s)]:GB/S:' \
        '--inter-node-bandwidth=[per GPU, one direction (the vendor'\''s servers'\'')]:GB/S:' \
        '--reserve=[kept free (0)]:SIZE:' \
        '--host-memory=[of a node, for what is offloaded\: 256GiB (not judged)]:SIZE:' \
        '--calibration=[overheads as tools/evidence fit measured them (built in)]:FILE:_files' \
        '--stack=[plimsoll, pytorch, deepspeed, megatron (pytorch)]:NAME:(plimsoll pytorch deepspeed megatron)' \
        '--device=[cuda, cpu (cuda; cpu only with plimsoll)]:NAME:(cuda cpu)' \
        '--compile[torch.compile of each block, or of the model (no; alone\: block)]:\[REGION\]:(no block model)' \
        '--kernels=[eager, liger, unsloth, fused (eager)]:NAME:(eager liger fused unsloth)' \
        '--torch-version=[2.4 to 2.11 (2.11)]:V:' \
        '--allocator-conf=[PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax]:TEXT:' \
        '--hold-outputs[the loop keeps the model'\''s outputs until after backward]' \
        '--transformers-version=[4.45 to 5.23 (5.17)]:V:' \
        '--bitsandbytes-version=[0.41 to 0.50 (0.50.2)]:V:' \
        '--model-code=[transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13\: whose forward (transformers)]:NAME:(transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13)' \
        '--zero=[0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP]:STAGE:(0 1 2 3)' \
        '--fsdp-activation-checkpointing=[FSDP1\: checkpoints inside its units (no)]:YES|NO:(yes no)' \
        '--fsdp-sync-module-states=[FSDP1\: rank 0 sends each unit as it is wrapped (no)]:YES|NO:(yes no)' \
        '--fsdp-use-orig-params=[FSDP1\: the optimizer steps original parameters (yes)]:YES|NO:(yes no)' \
        '--fsdp-version=[1, 2 (2)]:V:(1 2)' \
        '--shard-group=[hybrid sharding inside groups of N (all ranks)]:N:' \
        '--reduce-bucket=[plimsoll\: bytes of one gradient bucket (25MiB)]:SIZE:' \
        '--data-parallel=[ddp\: a process for each GPU; dp\: torch.nn.DataParallel, one process (ddp)]:KIND:(ddp dp)' \
        '--bucket-cap-mb=[DDP'\''s bucket_cap_mb (25)]:MIB:' \
        '--gradient-as-bucket-view=[DDP'\''s own knob (no)]:YES|NO:(yes no)' \
        '--reduce-bucket-size=[deepspeed\: elements of a bucket (5e8)]:N:' \
        '--overlap-comm=[deepspeed\: two buckets (yes with --zero 3)]:YES|NO:(yes no)' \
        '--round-robin-gradients=[deepspeed --zero 1, 2\: ranks own parameters in turn (no)]:YES|NO:(yes no)' \
        '--sub-group-size=[deepspeed --zero 3\: elements of one step (1e9)]:N:' \
        '--stage3-prefetch-bucket-size=[deepspeed (5e7)]:N:' \
        '--stage3-param-persistence-threshold=[deepspeed (1e5)]:N:' \
        '--stage3-max-live-parameters=[deepspeed (1e9)]:N:' \
        '--stage3-max-reuse-distance=[deepspeed (1e9)]:N:' \
        '--prefetch=[units gathered ahead]:N:' \
        '--deterministic[plimsoll\: all stages reduce at the same moments]' \
        '--exchange=[plimsoll\: nccl (GPUs), mpi or threads (the host)]:NAME:(threads mpi nccl)' \
        '--tp=[tensor parallel ranks, of torchtitan (1)]:N:' \
        '--sequence-parallel[shard what tensor parallelism replicates]' \
        '--pp=[pipeline stages (1)]:N:' \
        '--pp-schedule=[gpipe, 1f1b, interleaved, zero-bubble]:NAME:(gpipe 1f1b interleaved zero-bubble)' \
        '--virtual-stages=[stages per pipeline rank (1)]:N:' \
        '--cp=[context parallel ranks (1)]:N:' \
        '--ep=[expert parallel ranks (1)]:N:' \
        '--precision=[fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)]:KIND:(fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed)' \
        '--fp8-recipe=[torchao'\''s, of fp8-mixed\: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)]:NAME:(tensorwise rowwise rowwise_with_gw_hp)' \
        '--fp8-all-gather=[of fp8-mixed\: FSDP2 gathers weights that are cast (no)]:YES|NO:(yes no)' \
        '--param-dtype=[dtype the weights are loaded in (fp32 for mixed)]:DTYPE:' \
        '--grad-dtype=[of reduced gradients (the stack'\''s)]:DTYPE:' \
        '--reduce-dtype=[gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype]:DTYPE:' \
        '--master-weights=[fp32 masters beside 16-bit weights]:YES|NO:(yes no)' \
        '--fsdp-upcast=[Accelerate'\''s fp32 storage under FSDP (yes)]:YES|NO:(yes no)' \
        '--optimizer=[adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)]:NAME:(adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo)' \
        '--optimizer-impl=[foreach, fused, for-loop (the stack'\''s)]:KIND:(foreach fused for-loop)' \
        '--galore-rank=[of the projected gradients (128)]:N:' \
        '--optimizer-in-backward[step each parameter as its gradient comes]' \
        '--seq-len=[tokens (4096, at most what the model takes)]:N:' \
        '--micro-batch=[sequences per GPU and micro-step (1)]:N:' \
        '--grad-accum=[micro-steps per step (1)]:N:' \
        '--global-batch=[sequences per step of all GPUs, instead of --grad-accum]:N:' \
        '--padding-mask=[rows hold padding, which an attention mask says (no)]:YES|NO:(yes no)' \
        '--padding=[none; free\: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)]:KIND:(none free longest max)' \
        '--packing=[of --data\: no, wrapped, bfd, as TRL packs (no)]:KIND:(no wrapped bfd)' \
        '--pad-to-multiple-of=[of --data\: rows are as long as a multiple (1)]:N:' \
        '--recompute=[none, selective (core_attn), full, sqrt, every\:K (uniform\:K), block\:N (the first N), nth\:N (every Nth), recursive\:C, ops\:NAME+NAME, fit, budget\:SIZE (none)]:KIND:(none selective)' \
        '--use-reentrant=[of checkpoints (no; FSDP1'\''s old releases\: yes)]:YES|NO:(yes no)' \
        '--attention=[flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math]:KIND:(flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers)' \
        '--loss=[full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)]:KIND:(full chunked fused tiled)' \
        '--lora-rank=[train adapters of this rank, freeze the rest]:R:' \
        '--adapters=[LoRA\: how many are loaded; one is trained (1)]:N:' \
        '--lora-alpha=[(16)]:A:' \
        '--lora-targets=[all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)]:LIST:' \
        '--target-parameters=[mlp.experts.gate_up_proj,…\: stacked experts with LoRA, of Transformers 5]:LIST:' \
        '--feedforward-modules=[ia3\: of the targets, those whose input is scaled; none (PEFT'\''s own)]:LIST:' \
        '--virtual-tokens=[of a prompt, or of a prefix'\''s keys and values, beside --seq-len]:N:' \
        '--encoder-hidden=[width of the perceptron\: p-tuning (the model'\''s), prefix-tuning (it has none)]:N:' \
        '--lora-dropout=[(0)]:P:' \
        '--adapter-dtype=[fp32, bf16 (fp32)]:DTYPE:(fp32 bf16)' \
        '--modules-to-save=[embed_tokens,lm_head,…\: train copies of these whole modules]:LIST:' \
        '--lora-bias=[PEFT'\''s lora_bias (no)]:YES|NO:(yes no)' \
        '--use-dora=[PEFT'\''s weight-decomposed adapters (no)]:YES|NO:(yes no)' \
        '--quantize=[nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none)\: packs the frozen base]:KIND:(nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8)' \
        '--quant-storage=[uint8, bf16, fp16, fp32\: holds packed values (uint8)]:DTYPE:(uint8 bf16 fp16)' \
        '--kbit-prep=[PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)]:YES|NO:(yes no)' \
        '--kbit-casting=[TRL'\''s peft_module_casting_to_bf16 behind it\: all but norms in bf16 (no)]:YES|NO:(yes no)' \
        '*--freeze=[parameters that are not trained (repeatable)]:PATTERN:' \
        '*--train=[exceptions from --freeze (repeatable)]:PATTERN:' \
        '--offload=[optimizer, gradients, params, activations\: to the host]:LIST:' \
        '--offload-to=[cpu, nvme, managed (cpu)]:NAME:(cpu nvme managed)' \
        '--offload-pin=[pin_memory of what is on the host (yes)]:YES|NO:(yes no)' \
        '--offload-optimizer-buffer-count=[deepspeed, nvme\: offload_optimizer.buffer_count (4)]:N:' \
        '--offload-param-buffer-count=[deepspeed, nvme\: offload_param.buffer_count (5)]:N:' \
        '--offload-param-buffer-size=[deepspeed, nvme\: offload_param.buffer_size, elements (1e8)]:N:' \
        '--offload-param-max-in-cpu=[deepspeed, nvme\: parameters that leave their files (1e9)]:N:' \
        '--mode=[train, inference (train)]:NAME:(train inference)' \
        '--phase=[step; load\: also what loading the model takes, which may be more; merge\: what loading and merging the trained adapter takes, in a process of its own (step)]:NAME:(step load merge)' \
        '--device-map=[of --phase load, with AWQ or nothing packed\: none, then model.to; auto\: from_pretrained'\''s (none; of --phase merge auto)]:NAME:(none auto)' \
        '--batch=[inference\: sequences]:N:' \
        '--context=[inference\: tokens]:N:' \
        '--kv-dtype=[inference\: of the key-value cache]:DTYPE:' \
        '--deepspeed=[the user'\''s own ds_config.json]:FILE:_files' \
        '--peft=[the user'\''s own adapter_config.json]:FILE:_files' \
        '--accelerate=[the user'\''s own config.yaml of accelerate launch]:FILE:_files' \
        '--training-args=[TrainingArguments as JSON or YAML, MODEL in it or not]:FILE:_files' \
        '--axolotl=[the user'\''s own YAML of axolotl train]:FILE:_files' \
        '--llamafactory=[the user'\''s own YAML of llamafactory-cli train]:FILE:_files' \
        '--swift=[the arguments of swift sft (ms-swift) as YAML or JSON]:FILE:_files' \
        '--torchtitan=[the user'\''s own TOML of torchtitan 0.2]:FILE:_files' \
        '--trainer=[another program'\''s defaults\: see `plimsoll trainers`]:NAME\[@VERSION\]:' \
        '--detail[the whole timeline and every tensor in the JSON document]' \
        '--ranks=[as threads of this machine; the same as --gpus]:N:' \
        '--reduce-layers=[only the model'\''s first layers, planned anew]:N:' \
        '--prediction=[keep the plan that was made before the run]:FILE:_files' \
        '--anyway[although the plan says that it does not fit]' \
        '--steps=[optimizer steps (3)]:N:' \
        '--seconds=[and more steps, until they have taken so long (0)]:S:' \
        '--profile[one step more, timed kernel by kernel]' \
        '--seed=[of weights, dropout and rounding (42)]:N:' \
        '--lr=[learning rate (1e-4)]:X:' \
        '--warmup=[steps over which the learning rate grows from 0 (100)]:N:' \
        '--max-norm=[gradients are clipped to it; 0\: they are not (1; with --optimizer-in-backward 0)]:X:' \
        '--weight-decay=[(0.01)]:X:' \
        '--weights=[safetensors to start from (drawn by the seed)]:FOLDER:' \
        '--adapter=[PEFT'\''s adapter to start from (drawn by the seed); of several each takes --steps steps on the one base, and is saved below its folder'\''s name]:FOLDERS:' \
        '--data=[a text, a .bin of token ids, or synthetic (the shipped text)]:FILE:_files' \
        '--save-weights=[write the trained weights as safetensors]:FOLDER:' \
        '--save-merged=[write the model with its adapters merged, unpacked]:FOLDER:' \
        '--save-packed=[write the packed base as bitsandbytes'\'' checkpoints have it]:FOLDER:' \
        '--save-checkpoint=[write what --resume needs, when the run ends]:FOLDER:' \
        '--save-every=[and every N steps; the one before stays until the new one is whole]:N:' \
        '--resume=[go on from its checkpoint; --steps counts those made before]:FOLDER:' \
        '--poison[fill memory with NaN at its birth and death]' \
        '--timeout=[a rank that keeps others waiting longer ends the job (600)]:SECONDS:' \
        '--html=[write a page with pictures; - for standard output]:FILE:_files' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '1:MODEL:_alternative "names:MODEL:(gpt2 llama-3.1-8b)" "files:file:_files"' '*:file:_files' ;;
    compare)
      _arguments \
        '--help[the options of this command]' \
        '--html=[write a page with pictures; - for standard output]:FILE:_files' \
        '--published[every published row of FOLDER (this program'\''s own), asked as its source states it\: answered, refused, how far off]' \
        '--svg=[of --published\: planned against measured, as a picture]:FILE:_files' \
        '--tolerance=[of stacks that are estimated; plimsoll is exact (5)]:PERCENT:' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    report)
      _arguments \
        '--help[the options of this command]' \
        '--html=[write a page with pictures; - for standard output]:FILE:_files' \
        '--trace=[memory by category and ops, for ui.perfetto.dev]:FILE:_files' \
        '--memory-viz=[a snapshot for pytorch.org/memory_viz]:FILE:_files' \
        '--rank=[whose step --trace and --memory-viz show (the first in the file)]:N:' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    export)
      _arguments \
        '--help[the options of this command]' \
        '--to=[deepspeed, accelerate, transformers, slurm, plimsoll (the plan itself)]:TARGET:(deepspeed accelerate transformers slurm plimsoll)' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    oom)
      _arguments \
        '--help[the options of this command]' \
        '--params=[a bare parameter count (7.5e9, 7B) for MODEL\: model states only]:N:' \
        '--assume=[read the config as this model_type, whatever it says (llama)]:TYPE:' \
        '--dropout=[of every dropout of the model\: a rate, or config (config)]:P:' \
        '--task=[the head and its loss\: sft; classification, of whole sequences; mlm, BERT'\''s (the config'\''s class)]:NAME:(sft classification mlm dpo kto orpo reward grpo)' \
        '--gpu=[see `plimsoll gpus` (the local GPU, else h100-sxm-80gb)]:NAME:(h100 rtx-4090)' \
        '--gpus=[world size (1)]:N:' \
        '--gpus-per-node=[(8)]:N:' \
        '--gpu-memory=[80GB, 79.6GiB, bytes\: what CUDA reports as total]:SIZE:' \
        '--intra-node-bandwidth=[per GPU, one direction (the catalog'\''s)]:GB/S:' \
        '--inter-node-bandwidth=[per GPU, one direction (the vendor'\''s servers'\'')]:GB/S:' \
        '--reserve=[kept free (0)]:SIZE:' \
        '--host-memory=[of a node, for what is offloaded\: 256GiB (not judged)]:SIZE:' \
        '--calibration=[overheads as tools/evidence fit measured them (built in)]:FILE:_files' \
        '--stack=[plimsoll, pytorch, deepspeed, megatron (pytorch)]:NAME:(plimsoll pytorch deepspeed megatron)' \
        '--device=[cuda, cpu (cuda; cpu only with plimsoll)]:NAME:(cuda cpu)' \
        '--compile[torch.compile of each block, or of the model (no; alone\: block)]:\[REGION\]:(no block model)' \
        '--kernels=[eager, liger, unsloth, fused (eager)]:NAME:(eager liger fused unsloth)' \
        '--torch-version=[2.4 to 2.11 (2.11)]:V:' \
        '--allocator-conf=[PYTORCH_CUDA_ALLOC_CONF, in PyTorch'\''s own syntax]:TEXT:' \
        '--hold-outputs[the loop keeps the model'\''s outputs until after backward]' \
        '--transformers-version=[4.45 to 5.23 (5.17)]:V:' \
        '--bitsandbytes-version=[0.41 to 0.50 (0.50.2)]:V:' \
        '--model-code=[transformers, torchtitan@2024-03, torchtitan@2024-12, torchtitan@0.2.2, torchtune@0.6.1, litgpt@0.3.0, litgpt@0.4.13, litgpt@0.5.13\: whose forward (transformers)]:NAME:(transformers torchtitan@2024-03 torchtitan@2024-12 torchtitan@0.2.2 torchtune@0.6.1 litgpt@0.3.0 litgpt@0.4.13 litgpt@0.5.13)' \
        '--zero=[0, 1, 2, 3 (0); on pytorch DDP, ZeRO optimizer, FSDP]:STAGE:(0 1 2 3)' \
        '--fsdp-activation-checkpointing=[FSDP1\: checkpoints inside its units (no)]:YES|NO:(yes no)' \
        '--fsdp-sync-module-states=[FSDP1\: rank 0 sends each unit as it is wrapped (no)]:YES|NO:(yes no)' \
        '--fsdp-use-orig-params=[FSDP1\: the optimizer steps original parameters (yes)]:YES|NO:(yes no)' \
        '--fsdp-version=[1, 2 (2)]:V:(1 2)' \
        '--shard-group=[hybrid sharding inside groups of N (all ranks)]:N:' \
        '--reduce-bucket=[plimsoll\: bytes of one gradient bucket (25MiB)]:SIZE:' \
        '--data-parallel=[ddp\: a process for each GPU; dp\: torch.nn.DataParallel, one process (ddp)]:KIND:(ddp dp)' \
        '--bucket-cap-mb=[DDP'\''s bucket_cap_mb (25)]:MIB:' \
        '--gradient-as-bucket-view=[DDP'\''s own knob (no)]:YES|NO:(yes no)' \
        '--reduce-bucket-size=[deepspeed\: elements of a bucket (5e8)]:N:' \
        '--overlap-comm=[deepspeed\: two buckets (yes with --zero 3)]:YES|NO:(yes no)' \
        '--round-robin-gradients=[deepspeed --zero 1, 2\: ranks own parameters in turn (no)]:YES|NO:(yes no)' \
        '--sub-group-size=[deepspeed --zero 3\: elements of one step (1e9)]:N:' \
        '--stage3-prefetch-bucket-size=[deepspeed (5e7)]:N:' \
        '--stage3-param-persistence-threshold=[deepspeed (1e5)]:N:' \
        '--stage3-max-live-parameters=[deepspeed (1e9)]:N:' \
        '--stage3-max-reuse-distance=[deepspeed (1e9)]:N:' \
        '--prefetch=[units gathered ahead]:N:' \
        '--deterministic[plimsoll\: all stages reduce at the same moments]' \
        '--exchange=[plimsoll\: nccl (GPUs), mpi or threads (the host)]:NAME:(threads mpi nccl)' \
        '--tp=[tensor parallel ranks, of torchtitan (1)]:N:' \
        '--sequence-parallel[shard what tensor parallelism replicates]' \
        '--pp=[pipeline stages (1)]:N:' \
        '--pp-schedule=[gpipe, 1f1b, interleaved, zero-bubble]:NAME:(gpipe 1f1b interleaved zero-bubble)' \
        '--virtual-stages=[stages per pipeline rank (1)]:N:' \
        '--cp=[context parallel ranks (1)]:N:' \
        '--ep=[expert parallel ranks (1)]:N:' \
        '--precision=[fp32, bf16-mixed, fp16-mixed, bf16, fp16, fp8-mixed (bf16-mixed)]:KIND:(fp32 bf16-mixed fp16-mixed bf16 fp16 fp8-mixed)' \
        '--fp8-recipe=[torchao'\''s, of fp8-mixed\: tensorwise, rowwise, rowwise_with_gw_hp (tensorwise)]:NAME:(tensorwise rowwise rowwise_with_gw_hp)' \
        '--fp8-all-gather=[of fp8-mixed\: FSDP2 gathers weights that are cast (no)]:YES|NO:(yes no)' \
        '--param-dtype=[dtype the weights are loaded in (fp32 for mixed)]:DTYPE:' \
        '--grad-dtype=[of reduced gradients (the stack'\''s)]:DTYPE:' \
        '--reduce-dtype=[gradients are cast to it for the exchange over ranks (plimsoll); FSDP'\''s reduce dtype]:DTYPE:' \
        '--master-weights=[fp32 masters beside 16-bit weights]:YES|NO:(yes no)' \
        '--fsdp-upcast=[Accelerate'\''s fp32 storage under FSDP (yes)]:YES|NO:(yes no)' \
        '--optimizer=[adamw, sgd, momentum, rmsprop, adagrad, adafactor, muon, lion, ademamix, rmsprop-bnb, adam8bit, lion8bit, ademamix8bit, rmsprop8bit, paged-adamw, paged-adam8bit, paged-lion, paged-lion8bit, paged-ademamix, paged-ademamix8bit, torchao-adam8bit, torchao-adam4bit, torchao-adamfp8, schedule-free-adamw, schedule-free-sgd, schedule-free-radam, galore, galore8bit, q-galore, apollo, apollo-mini, adam-mini, stable-adamw, grokadamw, lomo, adalomo (adamw)]:NAME:(adamw sgd momentum rmsprop adagrad adafactor muon lion ademamix rmsprop-bnb adam8bit lion8bit ademamix8bit rmsprop8bit paged-adamw paged-adam8bit paged-lion paged-lion8bit paged-ademamix paged-ademamix8bit torchao-adam8bit torchao-adam4bit torchao-adamfp8 schedule-free-adamw schedule-free-sgd schedule-free-radam galore galore8bit q-galore apollo apollo-mini adam-mini stable-adamw grokadamw lomo adalomo)' \
        '--optimizer-impl=[foreach, fused, for-loop (the stack'\''s)]:KIND:(foreach fused for-loop)' \
        '--galore-rank=[of the projected gradients (128)]:N:' \
        '--optimizer-in-backward[step each parameter as its gradient comes]' \
        '--seq-len=[tokens (4096, at most what the model takes)]:N:' \
        '--micro-batch=[sequences per GPU and micro-step (1)]:N:' \
        '--grad-accum=[micro-steps per step (1)]:N:' \
        '--global-batch=[sequences per step of all GPUs, instead of --grad-accum]:N:' \
        '--padding-mask=[rows hold padding, which an attention mask says (no)]:YES|NO:(yes no)' \
        '--data=[lengths\: JSONL with input_ids, length or num_tokens, or CSV of length,count; planned is the worst batch]:FILE:_files' \
        '--padding=[none; free\: a micro-batch'\''s samples in one row, told apart by position_ids; of --data longest, max, free (none; longest)]:KIND:(none free longest max)' \
        '--packing=[of --data\: no, wrapped, bfd, as TRL packs (no)]:KIND:(no wrapped bfd)' \
        '--pad-to-multiple-of=[of --data\: rows are as long as a multiple (1)]:N:' \
        '--recompute=[none, selective (core_attn), full, sqrt, every\:K (uniform\:K), block\:N (the first N), nth\:N (every Nth), recursive\:C, ops\:NAME+NAME, fit, budget\:SIZE (none)]:KIND:(none selective)' \
        '--use-reentrant=[of checkpoints (no; FSDP1'\''s old releases\: yes)]:YES|NO:(yes no)' \
        '--attention=[flash, flash-1, flash-2, flash-3 (the packages), cudnn, efficient (of SDPA), flex, xformers (of Unsloth), eager, math]:KIND:(flash eager math flash-1 flash-2 flash-3 cudnn efficient flex xformers)' \
        '--loss=[full, chunked, fused, tiled (TRL 1.x'\''s) (full; fused with liger)]:KIND:(full chunked fused tiled)' \
        '--adapter=[lora, ia3, vera, prompt-tuning, p-tuning, prefix-tuning (lora, with --lora-rank)]:KIND:(lora ia3 vera prompt-tuning p-tuning prefix-tuning)' \
        '--lora-rank=[train adapters of this rank, freeze the rest]:R:' \
        '--adapters=[LoRA\: how many are loaded; one is trained (1)]:N:' \
        '--lora-alpha=[(16)]:A:' \
        '--lora-targets=[all-linear, attention, q_proj,v_proj,… (all-linear; of stacked experts attention; of ia3 PEFT'\''s own)]:LIST:' \
        '--target-parameters=[mlp.experts.gate_up_proj,…\: stacked experts with LoRA, of Transformers 5]:LIST:' \
        '--feedforward-modules=[ia3\: of the targets, those whose input is scaled; none (PEFT'\''s own)]:LIST:' \
        '--virtual-tokens=[of a prompt, or of a prefix'\''s keys and values, beside --seq-len]:N:' \
        '--encoder-hidden=[width of the perceptron\: p-tuning (the model'\''s), prefix-tuning (it has none)]:N:' \
        '--lora-dropout=[(0)]:P:' \
        '--adapter-dtype=[fp32, bf16 (fp32)]:DTYPE:(fp32 bf16)' \
        '--modules-to-save=[embed_tokens,lm_head,…\: train copies of these whole modules]:LIST:' \
        '--lora-bias=[PEFT'\''s lora_bias (no)]:YES|NO:(yes no)' \
        '--use-dora=[PEFT'\''s weight-decomposed adapters (no)]:YES|NO:(yes no)' \
        '--quantize=[nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8 (none)\: packs the frozen base]:KIND:(nf4 nf4-dq fp4 int8 int8-affine gptq gptq-row awq hqq torchao-int8)' \
        '--quant-storage=[uint8, bf16, fp16, fp32\: holds packed values (uint8)]:DTYPE:(uint8 bf16 fp16)' \
        '--kbit-prep=[PEFT'\''s prepare_model_for_kbit_training (yes with autocast, unless sharded)]:YES|NO:(yes no)' \
        '--kbit-casting=[TRL'\''s peft_module_casting_to_bf16 behind it\: all but norms in bf16 (no)]:YES|NO:(yes no)' \
        '*--freeze=[parameters that are not trained (repeatable)]:PATTERN:' \
        '*--train=[exceptions from --freeze (repeatable)]:PATTERN:' \
        '--offload=[optimizer, gradients, params, activations\: to the host]:LIST:' \
        '--offload-to=[cpu, nvme, managed (cpu)]:NAME:(cpu nvme managed)' \
        '--offload-pin=[pin_memory of what is on the host (yes)]:YES|NO:(yes no)' \
        '--offload-optimizer-buffer-count=[deepspeed, nvme\: offload_optimizer.buffer_count (4)]:N:' \
        '--offload-param-buffer-count=[deepspeed, nvme\: offload_param.buffer_count (5)]:N:' \
        '--offload-param-buffer-size=[deepspeed, nvme\: offload_param.buffer_size, elements (1e8)]:N:' \
        '--offload-param-max-in-cpu=[deepspeed, nvme\: parameters that leave their files (1e9)]:N:' \
        '--mode=[train, inference (train)]:NAME:(train inference)' \
        '--phase=[step; load\: also what loading the model takes, which may be more; merge\: what loading and merging the trained adapter takes, in a process of its own (step)]:NAME:(step load merge)' \
        '--device-map=[of --phase load, with AWQ or nothing packed\: none, then model.to; auto\: from_pretrained'\''s (none; of --phase merge auto)]:NAME:(none auto)' \
        '--batch=[inference\: sequences]:N:' \
        '--context=[inference\: tokens]:N:' \
        '--kv-dtype=[inference\: of the key-value cache]:DTYPE:' \
        '--deepspeed=[the user'\''s own ds_config.json]:FILE:_files' \
        '--peft=[the user'\''s own adapter_config.json]:FILE:_files' \
        '--accelerate=[the user'\''s own config.yaml of accelerate launch]:FILE:_files' \
        '--training-args=[TrainingArguments as JSON or YAML, MODEL in it or not]:FILE:_files' \
        '--axolotl=[the user'\''s own YAML of axolotl train]:FILE:_files' \
        '--llamafactory=[the user'\''s own YAML of llamafactory-cli train]:FILE:_files' \
        '--swift=[the arguments of swift sft (ms-swift) as YAML or JSON]:FILE:_files' \
        '--torchtitan=[the user'\''s own TOML of torchtitan 0.2]:FILE:_files' \
        '--trainer=[another program'\''s defaults\: see `plimsoll trainers`]:NAME\[@VERSION\]:' \
        '--detail[the whole timeline and every tensor in the JSON document]' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
    check)
      _arguments \
        '--help[the options of this command]' \
        '--against=[what the plans were (without it nothing is compared)]:BASELINE.json:_files' \
        '--max-growth=[of each figure, as in 2% (0)]:PERCENT:' \
        '--junit=[a test report, a case for each plan]:FILE:_files' \
        '--github[annotations of GitHub Actions (where it runs them, by itself)]' \
        '--json=[write the JSON document; - for standard output]:FILE:_files' \
        '--quiet[no table, no notes]' \
        '*:file:_files' ;;
  esac
}
_plimsoll "$@"
