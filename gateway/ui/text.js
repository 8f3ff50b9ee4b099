// Text to elements: fenced code and `inline code` only. Everything is a text node, so nothing a model writes can act.

const FENCE = /^ {0,3}(`{3,}|~{3,})/;

/** Blocks of a text: { code: boolean, text }. An open fence counts as code to the end. */
export function blocksOf(text) {
  const blocks = [];
  let fence = null;
  let lines = [];
  const close = (code) => {
    if (code || lines.length) blocks.push({ code, text: lines.join("\n") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    if (fence === null && mark) {
      close(false);
      fence = mark;
    } else if (fence !== null && mark && mark[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) {
      close(true);
      fence = null;
    } else {
      lines.push(line);
    }
  }
  close(fence !== null);
  return blocks;
}

function inline(text) {
  const nodes = document.createDocumentFragment();
  text.split(/(`[^`\n]+`)/).forEach((piece, index) => {
    if (index % 2) {
      const code = document.createElement("code");
      code.textContent = piece.slice(1, -1);
      nodes.append(code);
    } else if (piece) {
      nodes.append(piece);
    }
  });
  return nodes;
}

/** Show a text in an element. Blocks that have not changed since the last call are left alone. */
export function renderText(element, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, index) => {
    const old = element.children[index];
    const kind = block.code ? "PRE" : "DIV";
    if (old && old.tagName === kind && old.source === block.text) return;
    const fresh = document.createElement(kind);
    fresh.source = block.text;
    if (block.code) {
      const code = document.createElement("code");
      code.textContent = block.text;
      fresh.append(code);
    } else {
      fresh.append(inline(block.text.replace(/^\n+|\n+$/g, "")));
    }
    if (old) old.replaceWith(fresh);
    else element.append(fresh);
  });
  while (element.children.length > blocks.length) element.lastElementChild.remove();
}
