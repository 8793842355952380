"""torch.compile for torch_measure.py (stack.compile): "block", each layer by itself before it is
sharded, as torchtitan (apply_compile) and Accelerate (compile_regions) do; true or "model", all of it.

On the dry device Inductor runs as it is, but for Triton: its kernels are neither built nor launched. What
compiled code allocates, and when it lets go, is in the Python that Inductor writes around them.
"""

ACCEPTED = [False, True, "block", "model"]


def compile_layers(lists, backend="inductor"):
    """Each layer of each list, in its place."""
    import torch
    for layers in lists:
        for place, layer in layers.named_children():
            layers.register_module(place, torch.compile(layer, fullgraph=True, backend=backend))


def inside(module):
    """What was compiled, or the module itself."""
    return getattr(module, "_orig_mod", module)


def build_no_triton():
    """Inductor asks Triton's driver for the device and has its kernels built; it gets an answer and
    kernels that do nothing."""
    try:
        import torch
        import triton
        from triton.backends.compiler import GPUTarget
    except ImportError:
        return
    from torch._inductor import config

    class Driver:
        @staticmethod
        def get_current_target():
            major, minor = torch.cuda.get_device_capability()
            return GPUTarget("cuda", 10 * major + minor, 32)

        @staticmethod
        def get_current_device():
            return 0

        @staticmethod
        def get_active_torch_device():
            return torch.device("cuda", 0)

        @staticmethod
        def get_device_interface():
            return torch.cuda

        @staticmethod
        def get_current_stream(_=None):
            return 0

    class Kernel:
        @staticmethod
        def run(*_, **__):
            pass

    triton.runtime.driver.set_active(Driver())
    config.compile_threads = 1
    config.fx_graph_cache = False  # nothing of another run's

    def stub(compiler):
        compiler.triton = lambda *_, **__: Kernel()
        compiler.wait = lambda *_, **__: None

    later("torch._inductor.async_compile", lambda module: stub(module.AsyncCompile))


def later(name, change):
    """Changes a module when it is first imported: Inductor is slow to load, and most runs need none."""
    import importlib.abc
    import importlib.machinery
    import sys
    if name in sys.modules:
        change(sys.modules[name])
        return

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path, target=None):
            if fullname != name:
                return None
            sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(fullname, path)
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                change(module)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
