"""Hosts, addresses, paths and secrets that no file in the run names. The redactor recognizes them
by their form.
"""

import time

import pytest

from runbook.tools.redact.redaction import Redactor

HIDDEN = {
    # hosts with a domain, and hosts by their names
    "cloned from gitlab.company.com today": "cloned from [host] today",
    "head.default.svc.cluster.local, nas.local": "[host], [host]",
    "login.hpc.uni-acme.de": "[host]",
    "rank 3 on dgx-17 and DGX17 waits": "rank 3 on [host] and [host] waits",
    "acme-gpu-node-042, hgx-h100-003, r12i3n5": "[host], [host], [host]",
    "MASTER_ADDR=head": "MASTER_ADDR=[host]",
    "--rdzv_endpoint=head:29400": "--rdzv_endpoint=[host]:29400",
    'the "master_addr": "head"': 'the "master_addr": "[host]"',
    "connect to head:29500 failed; [head]:29500": "connect to [host]:29500 failed; [host]:29500",
    # addresses with every scheme
    "tcp://head:29400 timed out": "[address] timed out",
    "init_method=tcp://10.1.2.3:29400": "init_method=[address]",
    "redis://:pw@cache:6379/0 and ldap://dc1": "[address] and [address]",
    "ssh://ada@login/x, ws://kernel:8888/api": "[address], [address]",
    "jdbc:postgresql://db/x": "jdbc:[address]",
    "http://proxy.acme.com:3128/": "[address]",
    "https://github.com/acme/private-model": "[address]",
    "git@gitlab.company.com:ml/gpt.git": "[address]",
    "registry.acme.com:5000/ml/gpt:1": "[address]",
    "https://mm.acme.com/hooks/abc": "[address]",
    # numbers that identify machines
    "eth0 aa:bb:cc:dd:ee:ff, AA-BB-CC-DD-EE-FF, 0011.2233.4455": "eth0 [address], [address], [address]",
    "ib0 0x0002c903000a1b2c": "ib0 [address]",
    "2001:DB8::1 and FE80:0:0:0:202:B3FF:FE1E:8329": "[address] and [address]",
    "GPU-5f3a1b2c-0000-1111-2222-333344445555": "[id]",
    "arn:aws:iam::123456789012:role/ml": "[id]",
    # paths on other systems
    r"\\fileserver\home\ada is gone": "[path] is gone",
    r"C:\Users\ada\x.txt": "[path]",
    "//nas01/home/ada, nfs01:/export/home/x": "[path], [path]",
    # secrets
    "token hf_AbCdEfGhIjKlMnOpQrSt": "token [secret]",
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "WANDB_API_KEY=[secret]",
    "https://hooks.slack.com/services/T000/B000/XXXXXXXX": "[address]",
}


@pytest.mark.parametrize("text", HIDDEN)
def test_what_names_a_machine_is_hidden_and_the_sentence_stays(text):
    assert Redactor({}).text(text) == HIDDEN[text]


@pytest.mark.parametrize(
    "text",
    [
        "runbook.training.loop, torch.cuda, model.py, params/local.yaml:12, payload.sh:1212",
        "iteration:29050 took 3 tokens/s, loss 2.53 at 12:30:59 on 2026-11-26",
        "torch.no_grad() x.it y.to(device), std::vector<c10::Error>",
        "attention head 12, gpt2-xl, h100-80gb, gpt3-175b, a100-sxm4-80gb, 03-smoke-test, rank-0",
        "--ckpt-format torch_dist --master_port 29500, container.home",
        r"$\frac{a}{b} \\ \text{x}$",
        "layers.0.self_attention.linear_qkv.weight, module.py:1501, events.jsonl",
        "https://github.com/NVIDIA/Megatron-LM, https://arxiv.org/abs/2005.14165",
        "nvcr.io/nvidia/nemo:24.12, git+https://github.com/saforem2/ezpz",
        "commit f18fbf5b191bccf18fbf5b191bccf18fbf5b191b, 937,947,955 B",
    ],
)
def test_a_report_stays_readable(text):
    assert Redactor({}).text(text) == text


def test_a_known_address_stays_in_markup_and_an_unknown_one_does_not():
    html = '<a href="https://gitlab.company.com/x">x</a> <a href="https://arxiv.org/abs/1">y</a>'
    copy = html.replace("https://gitlab.company.com/x", "[address]")
    assert Redactor({}).markup(html) == copy


@pytest.mark.parametrize("piece", ["_", "-", "a-", "a.", "aa:", "//a", "a@", "[", "0x", "10."])
def test_a_long_line_takes_no_time_that_grows_with_its_square(piece):
    started = time.process_time()
    Redactor({"bob": "user"}).text(piece * (20_000 // len(piece)))
    assert time.process_time() - started < 4.0
