"""`claims fit`: the table, the document for scripts, exit statuses, and what is said of bad input."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bench_utils import cli
from bench_utils.measure import nvml
from tests.conftest import tiny_config
from tests.models.families import tiny_of

GIB = 2**30


@pytest.fixture
def fit(monkeypatch):
    """The command; call it with its arguments."""
    monkeypatch.setenv("COLUMNS", "150")
    return lambda *arguments: CliRunner().invoke(cli.app, ["fit", *arguments])


def document(fit, *arguments):
    return json.loads(fit(*arguments, "--json").stdout)


def test_the_table_has_the_chapters_figures(fit):
    result = fit("--model", "13b", "--memory", "8GiB")
    assert result.exit_code == 0
    assert "13b: 13,000,000,000 parameters; a token's cache is 819,200 B in 16 bit" in result.stdout
    assert "8GiB = 8,589,934,592 B (8.00 GiB)" in result.stdout
    assert "overhead  1,610,612,736 B (1.50 GiB)" in result.stdout
    row = next(line for line in result.stdout.splitlines() if line.startswith("int4"))
    assert row.split()[1:6] == ["6.24", "GiB", "0.26", "GiB", "337"]
    assert "1 user with at least one token each, in blocks of 16: fits in nf4, int4" in result.stdout


def test_a_gigabyte_is_no_gibibyte_and_the_reader_is_told(fit):
    assert (
        "8GB = 8,000,000,000 B (7.45 GiB); a card sold by this number holds as many GiB"
        in fit("--model", "7b", "--memory", "8GB").stdout
    )
    decimal, binary = (
        document(fit, "--model", "7b", "--memory", size, "--format", "int4") for size in ("8GB", "8GiB")
    )
    assert decimal["memory_bytes"] == 8 * 10**9
    assert binary["formats"][0]["num_tokens"] == 25_710
    assert decimal["formats"][0]["num_tokens"] == 25_710 - (8 * GIB - 8 * 10**9) // 131_072 - 1


def test_users_are_counted_in_blocks_and_by_reservation(fit):
    found = document(
        *(fit, "--model", "7b", "--memory", "16GiB", "--format", "int8"),
        *("--context", "1000", "--users", "4", "--reserve", "8192"),
    )
    row = found["formats"][0]
    assert row["num_tokens"] == 65_378
    assert row["num_users_paged"] == 65_378 // 1_008  # 63 blocks of 16
    assert row["num_users_reserving"] == 65_378 // 8_192
    assert row["longest_context"] == 65_378 // 16 * 16
    assert row["longest_context_each"] == 65_378 // 4 // 16 * 16
    assert found["fits"] is True


@pytest.mark.parametrize(
    ("arguments", "status", "limit"),
    [
        (("--context", "65376"), 0, "memory"),
        (("--context", "65377"), 1, "cache: 1.72 MiB too much"),
        (("--context", "4096", "--users", "15"), 0, "memory"),
        (("--context", "4096", "--users", "16"), 1, "cache: 0.02 GiB too much"),
        (("--context", "1", "--memory", "8GiB"), 1, "weights and overhead: 0.02 GiB too much"),
    ],
)
def test_the_exit_status_guards_a_load(fit, arguments, status, limit):
    memory = () if "--memory" in arguments else ("--memory", "16GiB")
    result = fit("--model", "7b", "--format", "int8", *memory, *arguments, "--json")
    assert result.exit_code == status
    assert json.loads(result.stdout)["formats"][0]["limit"] == limit


def test_one_format_that_fits_is_enough(fit):
    result = fit("--model", "7b", "--memory", "8GiB", "--context", "4096", "--users", "6")
    assert result.exit_code == 0
    assert "6 users with 4,096 tokens each, in blocks of 16: fits in nf4, int4" in result.stdout
    assert fit("--model", "70b", "--memory", "24GiB").exit_code == 1
    assert "does not fit" in fit("--model", "70b", "--memory", "24GiB").stdout


def test_every_option_reaches_the_arithmetic(fit):
    """7B at 32 GiB in fp32: (32 - 26.077 - 1) GiB over 262,144 B a token, in blocks of 100."""
    arguments = ("--model", "7b", "--memory", "32GiB", "--overhead", "1GiB", "--block", "100", "--users", "3")
    row = document(fit, *arguments, "--format", "float32", "--format", "fp32")["formats"]
    assert len(row) == 1
    num_tokens = (31 * GIB - 28_000_000_000) // 262_144
    assert (row[0]["token_bytes"], row[0]["num_tokens"]) == (262_144, num_tokens)
    assert row[0]["longest_context"] == num_tokens // 100 * 100
    assert row[0]["longest_context_each"] == num_tokens // 100 // 3 * 100
    assert row[0]["num_users_paged"] == num_tokens // 100
    assert document(fit, "--model", "7b", "--memory", "8GiB", "--overhead", "0GiB")["overhead_bytes"] == 0


def test_reservations_that_are_asked_for_must_fit(fit):
    asked = (
        "--model",
        "7b",
        "--memory",
        "16GiB",
        "--format",
        "int8",
        "--users",
        "4",
        "--context",
        "1000",
        "--reserve",
    )
    assert fit(*asked, "16344").exit_code == 0  # 65,378 tokens over four
    result = fit(*asked, "16345")
    assert result.exit_code == 1
    assert "reserved cache: 256.00 KiB too much" in result.stdout or "reserved cache: 0." in result.stdout
    assert "16,345 each" in result.stdout
    assert "1,000 each" in fit(*asked[:6], "--reserve", "1000").stdout  # without a context too
    assert fit(*asked, "1000").exit_code == 0  # as much as is asked for


def test_more_users_than_fit_are_told_apart_from_one(fit):
    """What limits is told for the users asked for, and each one's context ends at the model's positions."""
    many = document(fit, "--model", "qwen2.5-0.5b-shape", "--memory", "4GiB", "--format", "fp16", "--users", "2")
    row = many["formats"][0]
    assert (row["longest_context_each"], row["limit"]) == (32_768, "the model's 32,768 positions")
    crowd = document(fit, "--model", "qwen2.5-0.5b-shape", "--memory", "4GiB", "--format", "fp16", "--users", "90")
    assert crowd["formats"][0]["limit"] == "memory"
    exactly = ("--model", "qwen2.5-0.5b-shape", "--memory", "4GiB", "--context")
    assert fit(*exactly, "32768").exit_code == 0
    assert fit(*exactly, "32769").exit_code == 1


def test_a_window_and_a_packed_file_are_remarked_on(fit, tmp_path):
    tiny_of("mistral").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "mxfp4"}}))
    shown = fit("--model", str(tmp_path), "--memory", "2GiB").stdout
    assert "windows   hold a whole prompt" in shown
    assert "has weights in mxfp4, which is none of the formats below" in shown


def test_no_figure_is_lost_on_a_narrow_terminal(fit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    shown = "".join(
        fit("--model", "7b", "--memory", "24GiB", "--format", "int8", "--context", "4096").stdout.split()
    )
    assert "…" not in shown


def test_a_bug_is_no_answer(monkeypatch, capsys):
    """Status 1 would pass for 'does not fit'."""
    monkeypatch.setattr("sys.argv", ["claims", "fit", "--model", "7b", "--memory", "8GiB"])
    monkeypatch.setattr("bench_utils.fit.answer", lambda *_arguments: 1 // 0)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_configs_model_ends_at_its_positions(fit, tiny_folder):
    found = document(fit, "--model", str(tiny_folder), "--memory", "2GiB", "--format", "bf16")
    row = found["formats"][0]
    assert found["num_parameters"] == 640 * 32 + 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32
    assert (row["format"], row["longest_context"], row["limit"]) == ("fp16", 1_024, "the model's 1,024 positions")
    assert row["num_users_reserving"] == row["cache_bytes"] // (1_024 * row["token_bytes"])
    result = fit("--model", str(tiny_folder), "--memory", "2GiB", "--context", "2048")
    assert result.exit_code == 1
    assert "the model: made for 1,024 positions" in result.stdout


def test_a_model_whose_layers_all_forget_has_no_total_and_no_end_but_its_positions(fit, tmp_path):
    tiny_of("mistral", max_position_embeddings=4_096).save_pretrained(tmp_path)
    result = fit("--model", str(tmp_path), "--memory", "2GiB")
    assert "0 B in 16 bit beyond the windows; made for 4,096 positions" in result.stdout
    assert "tokens over" not in result.stdout
    row = document(fit, "--model", str(tmp_path), "--memory", "2GiB")["formats"][0]
    assert (row["num_tokens"], row["longest_context"]) == (None, 4_096)


def test_a_name_with_markup_in_it_is_text(fit, tmp_path):
    folder = tmp_path / "[red]model"
    tiny_config().save_pretrained(folder)
    assert "[red]model: " in fit("--model", str(folder), "--memory", "2GiB").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give either --memory, such as --memory 8GiB, or --gpu"),
        (("--memory", "8GiB", "--gpu"), "give either --memory"),
        (("--memory", "8G"), "the unit 'G' is unknown"),
        (("--memory=-8GB",), "is no size"),
        (("--memory", "8GiB", "--overhead", "some"), "is no size"),
        (("--memory", "8GiB", "--model", "7c"), "Did you mean '7b'?"),
        (("--memory", "8GiB", "--model", "7b", "--format", "int3"), "Did you mean 'int8'?"),
        (("--memory", "8GiB", "--model", "7b", "--context", "0"), "--context"),
        (("--memory", "8GiB", "--model", "7b", "--users", "-1"), "--users"),
        (("--memory", "8GiB", "--model", "7b", "--context", "9", "--reserve", "8"), "more than the 8 reserved"),
        (("--memory", "8GiB", "--model", "./nowhere"), "no model at './nowhere'"),
        (("--memory", "8GiB", "--model", ""), "--model is empty"),
        (("--memory", "999999999999999999GiB", "--model", "7b"), "more than any memory"),
        (("--memory", "8GiB", "--model", "7b", "--block", "9999999999"), "--block"),
        (("--memory", "8GiB", "--model", "7b", "--block", "0"), "--block"),
    ],
)
def test_bad_input_is_exit_status_2_with_the_remedy(fit, arguments, words):
    result = fit(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_cache_that_is_not_understood_is_exit_status_2_with_its_field(fit, tmp_path):
    from transformers import AutoConfig

    AutoConfig.for_model("jamba").save_pretrained(tmp_path)
    result = fit("--model", str(tmp_path), "--memory", "8GiB")
    assert result.exit_code == 2
    assert "config field mamba_d_state=16 of model_type='jamba'" in result.stderr


# --- --gpu, by stand-ins: no GPU is here


@pytest.fixture
def cuda(monkeypatch):
    """Torch with one GPU, of which 5 GiB are free by torch."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (5 * GIB, 8 * GIB))
    return monkeypatch


def test_of_a_gpu_what_is_free_counts(fit, cuda):
    cuda.setattr(nvml, "for_device", lambda *_device: SimpleNamespace(free_bytes=lambda: nvml.Reading(6 * GIB)))
    found = document(fit, "--model", "7b", "--gpu")
    assert (found["memory_bytes"], found["memory_source"]) == (6 * GIB, "Some GPU, free by NVML")


def test_where_nvml_is_silent_torch_is_asked(fit, cuda):
    def absent(*_device):
        raise nvml.NvmlError("NVML: no driver")

    cuda.setattr(nvml, "for_device", absent)
    found = document(fit, "--model", "7b", "--gpu")
    assert (found["memory_bytes"], found["memory_source"]) == (5 * GIB, "Some GPU, free by torch")
    cuda.setattr(nvml, "for_device", lambda *_device: SimpleNamespace(free_bytes=lambda: nvml.missing("hidden")))
    assert document(fit, "--model", "7b", "--gpu")["memory_source"] == "Some GPU, free by torch"


def test_the_device_of_the_settings_is_asked_and_no_other(fit, cuda):
    import torch

    asked = []
    cuda.setattr(torch.cuda, "device_count", lambda: 2)
    cuda.setattr(nvml, "for_device", lambda _type, index: asked.append(index))
    cuda.setenv("CLAIMS_DEVICE", "cuda:1")
    assert document(fit, "--model", "7b", "--gpu")["memory_bytes"] == 5 * GIB
    assert asked == [1]
    cuda.setenv("CLAIMS_DEVICE", "cpu")
    assert "and cpu is used; give --memory instead" in fit("--model", "7b", "--gpu").stderr


def test_on_mps_what_macos_recommends_is_the_memory(fit, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 11 * GIB)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 1 * GIB)
    assert document(fit, "--model", "7b", "--gpu")["memory_bytes"] == 10 * GIB


def test_without_a_gpu_the_remedy_is_named(fit, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    result = fit("--model", "7b", "--gpu")
    assert result.exit_code == 2
    assert "give --memory instead" in result.stderr
