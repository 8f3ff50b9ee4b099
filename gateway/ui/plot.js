// A line over the last five minutes on a canvas. Gaps are moments without a figure; colours come from the style sheet.

const SPAN_S = 300;

/** Round up to 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class Plot {
  #canvas;
  #points = []; // [unix seconds, value or null]
  #end = 0;
  #pointer = null;

  /** `top` fixes the scale's upper end; `label(value)` writes a figure. */
  constructor(canvas, { top = null, label, onpoint }) {
    this.#canvas = canvas;
    this.top = top;
    this.label = label;
    this.onpoint = onpoint;
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => { this.#pointer = event.offsetX; this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.#pointer = null; this.draw(); });
  }

  show(points, end) {
    this.#points = points;
    this.#end = end;
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (!width) return; // the page is hidden
    const scale = devicePixelRatio || 1;
    if (this.#canvas.width !== Math.round(width * scale) || this.#canvas.height !== Math.round(height * scale)) {
      this.#canvas.width = Math.round(width * scale);
      this.#canvas.height = Math.round(height * scale);
    }
    const context = this.#canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.#canvas);
    const [line, muted, accent] = ["--line", "--muted", "--plot"].map((name) => style.getPropertyValue(name).trim());
    const values = this.#points.map((point) => point[1]).filter((value) => value !== null);
    const top = this.top ?? ceiling(Math.max(...values, 1));
    const base = height - 16;
    const x = (time) => width - ((this.#end - time) / SPAN_S) * width;
    const y = (value) => base - (Math.min(value, top) / top) * (base - 14);

    context.font = `11px ${style.fontFamily}`;
    context.fillStyle = muted;
    context.strokeStyle = line;
    context.lineWidth = 1;
    for (const [value, text] of [[0, ""], [top / 2, ""], [top, this.label(top)]]) {
      const at = Math.round(y(value)) + 0.5;
      context.globalAlpha = value === 0 ? 1 : 0.55;
      context.beginPath();
      context.moveTo(0, at);
      context.lineTo(width, at);
      context.stroke();
      context.globalAlpha = 1;
      if (text) context.fillText(text, 0, at - 4);
    }
    context.fillText("5 min ago", 0, height - 2);
    context.textAlign = "right";
    context.fillText("now", width, height - 2);
    context.textAlign = "left";
    if (values.length) {
      this.#area(context, x, y, base, accent);
    } else {
      context.textAlign = "center";
      context.fillText("No figures yet", width / 2, (base + 10) / 2 + 4);
      context.textAlign = "left";
    }
    this.#mark(context, x, y, base, accent, width);
  }

  #area(context, x, y, base, accent) {
    context.strokeStyle = context.fillStyle = accent;
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    for (const run of this.#runs()) {
      context.beginPath();
      for (const [time, value] of run) context.lineTo(x(time), y(value));
      if (run.length === 1) context.arc(x(run[0][0]), y(run[0][1]), 1.5, 0, 7);
      context.stroke();
      if (run.length === 1) continue;
      context.lineTo(x(run.at(-1)[0]), base);
      context.lineTo(x(run[0][0]), base);
      context.globalAlpha = 0.1;
      context.fill();
      context.globalAlpha = 1;
    }
  }

  /** Stretches of points without a gap. */
  #runs() {
    const runs = [];
    let run = null;
    for (const point of this.#points) {
      if (point[1] === null || this.#end - point[0] > SPAN_S) run = null;
      else if (run && point[0] - run.at(-1)[0] < 5) run.push(point);
      else runs.push(run = [point]);
    }
    return runs;
  }

  #mark(context, x, y, base, accent, width) {
    if (this.#pointer === null) return this.onpoint(null);
    const time = this.#end - (1 - this.#pointer / width) * SPAN_S;
    const near = this.#points.filter((point) => point[1] !== null && Math.abs(point[0] - time) < 2)
      .sort((a, b) => Math.abs(a[0] - time) - Math.abs(b[0] - time))[0];
    if (near) {
      context.fillStyle = accent;
      context.fillRect(x(near[0]) - 0.5, 12, 1, base - 12);
      context.beginPath();
      context.arc(x(near[0]), y(near[1]), 3.5, 0, 7);
      context.fill();
    }
    this.onpoint(near ? { value: near[1], secondsAgo: this.#end - near[0] } : null);
  }
}
