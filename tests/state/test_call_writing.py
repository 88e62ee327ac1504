"""How calls are written: templates as hiredis would write them, scripts with what they use of the common part and no more."""

from __future__ import annotations

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from ampd.state.scripts import Script, load_scripts
from ampd.state.template import Template

SCRIPT = Script("d" * 40, "return {KEYS, ARGV}")
own = st.lists(st.binary(max_size=20), min_size=3, max_size=3)
shared = st.lists(st.text(max_size=9) | st.integers(), max_size=4)


@given(own, shared, shared)
def test_a_filled_template_is_the_command(own: list[bytes], keys: list[str | int], args: list[str | int]) -> None:
    template = Template(SCRIPT, keys, 1, 2, args)
    for text, start in ((False, ("EVALSHA", SCRIPT.digest)), (True, ("EVAL", SCRIPT.text))):
        command = (*start, len(keys) + 1, *keys, *own, *args)
        assert template.fill(own, text=text) == hiredis.pack_command(command)


def test_scripts_carry_what_they_use() -> None:
    texts = {name: script.text for name, script in load_scripts().items()}
    for name, defined, unused in (
        ("open_round", ("function read_load", "function whole", "function now", "local SESSION", "local MANY"), ("read_window",)),
        ("bind", ("function write_stats", "function read_stats", "PROMISED", "function now"), ("MANY", "fold_window")),
        ("close_round", ("function put_ledger",), ("read_load", "TTFT_S")),
        ("put_worker", ("function fold_window", "function read_window", "ITL_S"), ("SESSION",)),
    ):
        assert [d for d in defined if d not in texts[name]] == []
        assert [u for u in unused if u in texts[name]] == []
