"""Small operations: embedding, norms that nothing took along, sums of rows, and the head."""

from dataclasses import dataclass

from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.memory import Weight
from engine.backend.cuda.products import Product, Source, products


@dataclass
class EmbedBlock:
    """Rows of a table: of the window's tokens, `copies` of each beside each other, or of the `indices` i32 [T, per_token]."""

    b: object
    table: Weight
    out: Buffer
    copies: int = 1
    scale: float = 1.0
    indices: Buffer | None = None
    per_token: int = 1

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        b, floats = self.b, self.table.is_float
        arguments = {
            "window": b.window, "tokens": self.indices, "table": self.table.buffer, "columns": self.table.columns,
            "copies": self.copies, "per_token": self.per_token, "scale": self.scale,
            "history": b.history if self.indices is None else None, "out": self.out}
        if not floats:
            arguments["vocabulary"] = self.table.rows
        define = "WEIGHT" if floats else "FORMAT"
        return [Launch("floats" if floats else "embed", ((define, self.table.format),), "float_embed" if floats else "embed",
                       (tokens * self.per_token, 1, 1), 256, 0, arguments)]


@dataclass
class NormBlock:
    """Root-mean-square norm of rows into other rows."""

    b: object
    x: Buffer
    width: int
    weight: Buffer | None
    eps: float
    out: Buffer

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        return [norm_launch(self.b.window, self.x, self.width, self.weight, self.eps, self.out, tokens)]


def norm_launch(window: Buffer, x: Buffer, width: int, weight: Buffer | None, eps: float, out: Buffer, tokens: int, *,
                parts: int = 1) -> Launch:
    """The norm of each of the `parts` of every row."""
    return Launch("rows", (), "norm_rows", (parts, tokens, 1), 256, 0, {
        "window": window, "x": x, "weight": weight, "eps": eps, "columns": width // parts, "parts": parts, "out": out})


@dataclass
class AddBlock:
    """x = x_scale * x + scale * y; y None: x = x_scale * x."""

    b: object
    x: Buffer
    y: Buffer | None
    width: int
    x_scale: float
    scale: float

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        return [Launch("rows", (), "add_rows", (-(-self.width // 256), tokens, 1), 256, 0, {
            "window": self.b.window, "y": self.y, "x": self.x, "gate": None, "columns": self.width, "x_scale": self.x_scale,
            "scale": self.scale})]


@dataclass
class HeadBlock:
    """Logits of the rows that the window asks for, and the greatest of each."""

    b: object
    source: Source
    weight: Weight
    logits: Buffer
    best: Buffer
    scale: float
    soft_cap: float

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        return products(self.b.window, self.source, [Product(self.weight, self.logits)], tokens,
                        multiprocessors=self.b.multiprocessors, scale=self.scale, soft_cap=self.soft_cap, best=self.best,
                        only_wanted=True)
