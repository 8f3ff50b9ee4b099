"""What a GGUF file holds, by its metadata and its tensors' names alone: also of files that nobody here can run.

Nothing in a file is trusted: a value of the wrong type counts as absent, and every text is cut and escaped before it is shown.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from engine.gguf import PLE_TABLE, ArrayStub, ModelFiles, Tensor
from engine.gguf.cursor import printable

_BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)")
# role of a tensor by its name without "blk.N."; the first match counts
_ROLES = tuple((role, re.compile(pattern)) for role, pattern in (
    ("routed experts", r"ffn_(gate|up|down|gate_up)_exps"), ("router", r"ffn_gate_inp|exp_probs"),
    ("shared experts", r"_shexp"), ("norms", r"norm"), ("head", r"^output\."), ("embedding", r"^token_embd\."),
    ("table of layer inputs", r"^per_layer_token_embd"), ("layer inputs", r"^ple_|^per_layer_model_proj|^inp_gate|^proj\."),
    ("dense feed-forward", r"^ffn_(gate|up|down)\."),
    ("recurrent", r"^ssm_|^shortconv"), ("attention", r"^attn_|^indexer"), ("hyper-connections", r"^hc_|^output_hc_"),
))
_RECURRENT = re.compile(r"ssm_|shortconv\.")
# what mixes the tokens of a block, by one of its tensors; the first match counts
_MIXERS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    ("Mamba2", r"ssm_d$|ssm_d\."), ("delta net", r"ssm_(alpha|beta|ba)\."), ("short convolution", r"shortconv\."),
    ("compressed attention", r"attn_kv_a_mqa\."), ("sparse attention", r"indexer\."), ("attention", r"attn_(q|qkv)\.")))
_HALVES = (("experts", re.compile(r"ffn_down_exps\.")), ("shared expert", re.compile(r"ffn_down_shexp\.")),
           ("dense", re.compile(r"ffn_down\.")))


@dataclass(frozen=True)
class RoleBytes:
    """Tensors of one role: how many, and bytes by format."""

    role: str
    count: int
    by_format: Mapping[str, int]

    @property
    def n_bytes(self) -> int:
        """Of all formats."""
        return sum(self.by_format.values())


class Facts:
    """One opened file, or split set."""

    def __init__(self, files: ModelFiles) -> None:
        self.files, self.tensors = files, files.tensors

    def text(self, key: str) -> str:
        """A text of the metadata in one short line, or nothing."""
        value = self.files.metadata.get(key)
        return printable(value) if isinstance(value, str) else ""

    def integer(self, key: str, default: int = 0) -> int:
        """A whole number under `<architecture>.<key>`; of an array that was decoded, its largest."""
        value = self.files.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, ArrayStub) and value.length <= 1 << 16 and value.type not in ("string", "bool"):
            value = max((v for v in self.files.array(f"{self.architecture}.{key}") if isinstance(v, int)), default=None)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    @property
    def architecture(self) -> str:
        """As the file names it."""
        value = self.files.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""

    @cached_property
    def blocks(self) -> dict[int, list[str]]:
        """Names of tensors behind `blk.N.`, by N, ascending."""
        found: dict[int, list[str]] = {}
        for match in filter(None, map(_BLOCK.fullmatch, self.tensors)):
            found.setdefault(int(match[1]), []).append(match[2])
        return dict(sorted(found.items()))

    @property
    def trunk_layers(self) -> int:
        """Blocks that are not drafts."""
        return max(self.integer("block_count", len(self.blocks)) - self.integer("nextn_predict_layers"), 0)

    @property
    def draft_blocks(self) -> list[int]:
        """Numbers of draft blocks whose tensors are there."""
        return [number for number in self.blocks if number >= self.trunk_layers]

    @property
    def is_draft_only(self) -> bool:
        """Whether all blocks are drafts."""
        return bool(self.blocks) and len(self.draft_blocks) == len(self.blocks)

    def kind_of_block(self, number: int) -> str:
        """What a block is made of, such as "attention, experts"."""
        names = self.blocks[number]

        def has(pattern: re.Pattern) -> bool:
            return any(pattern.match(name) for name in names)

        mixer = next((kind for kind, pattern in _MIXERS if has(pattern)), None)
        return ", ".join(filter(None, [mixer, *(kind for kind, pattern in _HALVES if has(pattern))])) or "other"

    def kinds(self) -> list[tuple[str, list[int]]]:
        """Kinds of the trunk's blocks and the numbers of each."""
        found: dict[str, list[int]] = {}
        for number in self.blocks:
            if number < self.trunk_layers:
                found.setdefault(self.kind_of_block(number), []).append(number)
        return list(found.items())

    def role_of(self, tensor: Tensor) -> str:
        """Where a tensor belongs in the table."""
        match = _BLOCK.fullmatch(tensor.name)
        if match and int(match[1]) >= self.trunk_layers:
            return "draft blocks"
        role = next((role for role, pattern in _ROLES if pattern.search(match[2] if match else tensor.name)), "other")
        if role == "attention" and match and any(map(_RECURRENT.match, self.blocks[int(match[1])])):
            return "recurrent"  # such layers have projections of the same names
        return role

    def by_role(self) -> list[RoleBytes]:
        """The largest role first."""
        found: dict[str, Counter[str]] = {}
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            role = self.role_of(tensor)
            counts[role] += 1
            found.setdefault(role, Counter())[tensor.format.name] += tensor.n_bytes
        groups = [RoleBytes(role, counts[role], dict(formats.most_common())) for role, formats in found.items()]
        return sorted(groups, key=lambda group: -group.n_bytes)

    @property
    def n_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    def expert_bytes(self) -> tuple[int, float]:
        """Bytes of the trunk's routed experts, and those of them that one token reads."""
        total, read = 0, 0.0
        used = self.integer("expert_used_count")
        for tensor in self.tensors.values():
            if len(tensor.shape) == 3 and self.role_of(tensor) == "routed experts":
                total += tensor.n_bytes
                read += tensor.n_bytes * min(used / tensor.shape[0], 1)
        return total, read


@dataclass(frozen=True)
class Part:
    """A kind of file that is no whole model."""

    what: str
    belongs_to: str
    is_it: Callable[[Facts], bool]


PARTS = (
    Part("a vocabulary without weights", "no engine", lambda f: not f.tensors),
    Part("the table of n-gram embeddings of a qwen4exp", "its model, as --ple-gguf", lambda f: set(f.tensors) == {PLE_TABLE}),
    Part("a draft head that reads the cache of a gemma4", "that model", lambda f: f.architecture == "gemma4-assistant"),
    Part("a draft block of a qwen4exp in the layout of another engine", "that engine",
         lambda f: f.architecture == "qwen4exp-mtp"),
    Part("a draft block without its trunk", "the model whose layers come before it", lambda f: f.is_draft_only),
    Part("an image or audio encoder", "a model that reads images", lambda f: f.architecture == "clip"),
    Part("an adapter for a model", "that model", lambda f: f.text("general.type") == "adapter"),
    Part("an importance matrix", "a quantizer", lambda f: f.text("general.type") == "imatrix"),
)


def ranges(numbers: Iterable[int], *, most: int = 6) -> str:
    """Ascending numbers as "0-2, 4", cut after a few."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:most]]
    return ", ".join(shown + ["…"] * (len(runs) > most))
