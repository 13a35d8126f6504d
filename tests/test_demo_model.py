"""Demo models: written once and whole, and their answers differ."""

import threading
from pathlib import Path

import pytest

from pdtrace.connector import demo_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of our own."""
    monkeypatch.setenv("PDTRACE_CACHE", str(tmp_path))
    return tmp_path


def test_large_kv_has_128_kib_a_token() -> None:
    """Tens of megabytes for a prompt of ordinary length."""
    assert demo_model.MODELS["large-kv"].kv_bytes_per_token == 128 * 1024


def test_a_model_is_written_once(cache: Path) -> None:
    """The second call finds the first one's files; the name carries the version of the content."""
    path = demo_model.model_path("small")
    assert path == cache / "models" / f"small-v{demo_model.CONTENT_VERSION}"
    before = (path / "model.safetensors").stat().st_mtime_ns
    assert demo_model.model_path("small") == path
    assert (path / "model.safetensors").stat().st_mtime_ns == before


def test_several_writers_leave_one_whole_model(cache: Path) -> None:
    """Who comes second keeps the first one's model; no draft stays."""
    writers = [threading.Thread(target=demo_model.model_path, args=("small",)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    (model,) = (cache / "models").iterdir()
    names = {file.name for file in model.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_an_interrupted_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model directory is either whole or not there."""

    def fail(path: Path, shape: demo_model.Shape) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(demo_model, "_write_weights", fail)
    with pytest.raises(OSError, match="disk full"):
        demo_model.model_path("small")
    assert list((cache / "models").iterdir()) == []


def test_weights_are_the_same_each_time(tmp_path: Path) -> None:
    """Engines that wrote their own copy hold the same model."""
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        demo_model.write_model(tmp_path / name, demo_model.MODELS["small"])
        written.append((tmp_path / name / "model.safetensors").read_bytes())
    assert written[0] == written[1]


def test_an_unknown_name_is_refused() -> None:
    """With the names that there are."""
    with pytest.raises(ValueError, match="no demo model 'big'; there are small, large-kv"):
        demo_model.model_path("big")


def test_a_token_is_a_byte_and_text_round_trips(cache: Path) -> None:
    """Also for text that is not ASCII."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_model.model_path("small") / "tokenizer.json"))
    text = " Größe 漢字\n\tx" + "".join(map(chr, range(0x20, 0x7F)))
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|im_start|>").ids == [257]


def test_each_answer_depends_on_its_prompt_and_does_not_go_in_circles(cache: Path) -> None:
    """Otherwise equal output of two set-ups would prove nothing."""
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(demo_model.model_path("small"), dtype=torch.float32)
    answers = []
    for prompt in ("Hello", "Hello!", "1 The quick brown fox " * 4, "2 The quick brown fox " * 4):
        ids = torch.tensor([list(prompt.encode())])
        whole = model.generate(ids, max_new_tokens=32, do_sample=False, pad_token_id=256)
        answers.append(bytes(whole[0, ids.shape[1] :].tolist()).decode("ascii"))
    assert len(set(answers)) == len(answers)
    for answer in answers:
        assert answer.isprintable()
        assert len(set(answer)) >= 12
