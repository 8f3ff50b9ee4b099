// A model's text to elements: the part of Markdown that models write. Every character ends up in a text node and every
// link is http, so nothing a model writes can act.

import { copy, make } from "/ui/dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = /(`+)([^`](?:.*?[^`])?)\1(?!`)|\*\*(?=\S)([^]+?\S)\*\*|\*(?=[^\s*])([^*]*?[^\s*])\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"'`)\]]*[^\s<>"'`)\].,;:!?])/;

const kindOf = (line) => {
  if (!line.trim()) return "blank";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (ITEM.test(line)) return "list";
  if (/^ {0,3}>/.test(line)) return "quote";
  return "paragraph";
};

/** Blocks of a text: { kind, lines, language? }. An open fence counts as code to the end. */
export function blocksOf(text) {
  const blocks = [];
  let block = null;
  let fence = null;
  const open = (kind, lines, more = {}) => blocks.push(block = { kind, lines, ...more });
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line);
    if (fence !== null) {
      if (mark && mark[1][0] === fence[0] && mark[1].length >= fence.length && line.trim() === mark[1]) fence = block = null;
      else block.lines.push(line);
    } else if (mark) {
      fence = mark[1];
      open("code", [], { language: mark[2] });
    } else {
      const kind = kindOf(line);
      const goesOn = block && (block.kind === kind ? kind !== "heading" && kind !== "rule"
        : kind === "paragraph" && (block.kind === "quote" || (block.kind === "list" && /^\s/.test(line))));
      if (kind === "blank") {
        block = null;
      } else if (block?.kind === "paragraph" && block.lines.length === 1 && block.lines[0].includes("|") && TABLE_RULE.test(line)) {
        block.kind = "table";
        block.lines.push(line);
      } else if (goesOn || (block?.kind === "table" && line.includes("|"))) {
        block.lines.push(line);
      } else if (kind === "list" && blocks.at(-1)?.kind === "list" && !block) {
        block = blocks.at(-1); // a blank line between two items
        block.lines.push(line);
      } else {
        open(kind, [line]);
      }
    }
  }
  return blocks;
}

function inline(text) {
  const nodes = [];
  let rest = text;
  for (let found; (found = INLINE.exec(rest)); rest = rest.slice(found.index + found[0].length)) {
    if (found.index) nodes.push(rest.slice(0, found.index));
    const [whole, ticks, code, strong, slanted, label, address, bare] = found;
    if (ticks) nodes.push(make("code", {}, code.trim() || code));
    else if (strong) nodes.push(make("strong", {}, inline(strong)));
    else if (slanted) nodes.push(make("em", {}, inline(slanted)));
    else if (label) nodes.push(link(label, address));
    else if (bare) nodes.push(link(bare, bare));
    else nodes.push(whole);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function link(label, address) {
  return make("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, label);
}

function list(lines) {
  const indent = ITEM.exec(lines[0])[1].length;
  const ordered = /^\d/.test(ITEM.exec(lines[0])[2]);
  const root = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(ITEM.exec(lines[0])[2], 10) } : {});
  let inner = [];
  const closeInner = () => {
    if (inner.length) root.lastElementChild.append(ITEM.test(inner[0]) ? list(inner) : make("p", {}, inline(inner.join("\n").trim())));
    inner = [];
  };
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent + 1) {
      closeInner();
      root.append(make("li", {}, inline(item[3])));
    } else {
      if (inner.length && ITEM.test(line) !== ITEM.test(inner[0]) && !ITEM.test(inner[0])) closeInner();
      inner.push(line);
    }
  }
  closeInner();
  return root;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const [head, , ...rows] = lines;
  return make("div", { class: "table-box" }, make("table", {},
    make("thead", {}, make("tr", {}, cells(head).map((cell) => make("th", { scope: "col" }, inline(cell))))),
    make("tbody", {}, rows.map((row) => make("tr", {}, cells(row).map((cell) => make("td", {}, inline(cell))))))));
}

function code({ lines, language }) {
  const text = lines.join("\n");
  const button = make("button", { class: "quiet", type: "button", onclick: () => copy(button, text) }, "Copy");
  return make("figure", { class: "code" },
    make("figcaption", {}, make("span", {}, language || "code"), button),
    make("pre", { tabIndex: 0 }, make("code", {}, text)));
}

function render(block) {
  const text = block.lines.join("\n");
  switch (block.kind) {
    case "code": return code(block);
    case "heading": {
      const [, marks, title] = HEADING.exec(text);
      return make(`h${Math.min(marks.length + 2, 6)}`, {}, inline(title));
    }
    case "list": return list(block.lines);
    case "quote": return make("blockquote", {}, inline(text.replace(/^ {0,3}> ?/gm, "")));
    case "rule": return make("hr");
    case "table": return table(block.lines);
    default: return make("p", {}, inline(text));
  }
}

/** Show a text in an element. Blocks that have not changed since the last call are left alone. */
export function renderText(element, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, index) => {
    const source = `${block.kind} ${block.language ?? ""}\n${block.lines.join("\n")}`;
    const old = element.children[index];
    if (old && old.source === source) return;
    const fresh = render(block);
    fresh.source = source;
    if (old) old.replaceWith(fresh);
    else element.append(fresh);
  });
  while (element.children.length > blocks.length) element.lastElementChild.remove();
}
