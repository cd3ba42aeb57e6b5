"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const STEPS = 255;
const LARGEST = 65535;
const MEAN = -1; // in place of a head's number
const TOP = 3; // number of boxes whose share is always printed; one with patches
const TINY = 80; // photos with fewer pixels are enlarged without smoothing
const STRONG = 0.63; // text on shades from this one on is black, in dark mode too
const THEMES = ["system", "light", "dark"];

const state = {
  pair: 0,
  pick: null, // {kind: "words" | "boxes", panel, index}
  linked: true,
  shared: true,
  theme: 0,
  panels: data.models.map(() => ({ layer: 0, head: MEAN })),
};
let panels = [];

// -- helpers ----------------------------------------------------------------------------------------------------------

// Texts become text nodes, never markup.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function percent(share) {
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value < 9.95 ? value.toFixed(1) : value.toFixed(0)} %`;
}

function sum(values, keep) {
  let total = 0;
  values.forEach((value, index) => {
    if (!keep || keep(index)) total += value;
  });
  return total;
}

function largest(values, keep) {
  let most = 0;
  values.forEach((value, index) => {
    if ((!keep || keep(index)) && value > most) most = value;
  });
  return most;
}

// -- attention --------------------------------------------------------------------------------------------------------

const unpacked = new Map();

// The weights of a block, by head and row: first two bytes per row, its largest weight; then one byte per weight.
function block(view, layer, rows, columns) {
  const text = layer.blocks[`${rows}_${columns}`];
  if (text === undefined) return null;
  if (!unpacked.has(text)) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const count = layer.heads * view[rows].length;
    const wide = view[columns].length;
    const values = new Float32Array(count * wide);
    for (let row = 0; row < count; row += 1) {
      const most = (bytes[2 * row] + 256 * bytes[2 * row + 1]) / LARGEST;
      for (let column = 0; column < wide; column += 1) {
        values[row * wide + column] = (bytes[2 * count + row * wide + column] / STEPS) * most;
      }
    }
    unpacked.set(text, values);
  }
  return unpacked.get(text);
}

// Attention from a word or box to each word or box, of a head or the mean of all; null if the layer does not have it.
function given(view, layer, head, pick, columns) {
  const values = block(view, layer, pick.kind, columns);
  if (values === null) return null;
  const tall = view[pick.kind].length;
  const wide = view[columns].length;
  const heads = head === MEAN ? [...Array(layer.heads).keys()] : [head];
  const shares = new Float32Array(wide);
  for (const one of heads) {
    const start = (one * tall + pick.index) * wide;
    for (let column = 0; column < wide; column += 1) shares[column] += values[start + column] / heads.length;
  }
  return shares;
}

// The share of one position under even attention from the selected word or box.
const evenOf = (layer, pick) => layer.even[pick.kind][pick.index];
// Number of positions of a word or box: a word of three tokens gets three even shares.
const placesOf = (view, columns) => (index) => (columns === "words" ? view.words[index][2] : 1);

// Shares as multiples of even attention.
function timesEven(view, layer, pick, shares, columns) {
  if (shares === null) return null;
  const even = evenOf(layer, pick);
  const places = placesOf(view, columns);
  return shares.map((share, index) => share / (even * places(index)));
}

const TWICE = 2; // the full shade is at least this many even shares, so that nearly even attention has a light shade

function times(ratio) {
  if (ratio > 0 && ratio < 0.1) return "< 0.1 ×";
  return `${ratio < 9.95 ? ratio.toFixed(1) : ratio.toFixed(0)} ×`;
}

const isWord = (view) => (index) => view.words[index][1] >= 0;
const isBox = (view) => (index) => !view.whole.includes(index);

const holds = (layer, rows, columns) => layer.blocks[`${rows}_${columns}`] !== undefined;
const readsFrom = (layer, rows) => holds(layer, rows, "words") || holds(layer, rows, "boxes");

// What the table of heads shows: attention to the other side, or to the same side if there is none across.
function across(view, pick) {
  const other = pick.kind === "words" ? "boxes" : "words";
  const columns = view.layers.some((layer) => holds(layer, pick.kind, other)) ? other : pick.kind;
  return { columns, keep: columns === "boxes" ? isBox(view) : isWord(view) };
}

// Names of a view's boxes and of its whole-image region.
const boxesOf = (view) => (view.patches ? "patches" : "boxes");
const wholeOf = (view) => (view.patches ? "the image’s class token" : "the whole image");

// -- selection --------------------------------------------------------------------------------------------------------

function overlap(a, b) {
  const wide = Math.min(a[2], b[2]) - Math.max(a[0], b[0]);
  const high = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  if (wide <= 0 || high <= 0) return 0;
  const area = (box) => (box[2] - box[0]) * (box[3] - box[1]);
  return (wide * high) / (area(a) + area(b) - wide * high);
}

// The box of another view with the largest overlap; with patches, whose sizes differ, the smallest around its centre.
function sameBox(from, to, picked) {
  const box = from.boxes[picked];
  if (!(from.patches || to.patches) || from.whole.includes(picked)) {
    const overlaps = to.boxes.map((other) => overlap(other, box));
    return overlaps.indexOf(Math.max(0.5, ...overlaps));
  }
  const [x, y] = [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2];
  const area = (index) => (to.boxes[index][2] - to.boxes[index][0]) * (to.boxes[index][3] - to.boxes[index][1]);
  const around = [...to.boxes.keys()].filter((index) => {
    const [x1, y1, x2, y2] = to.boxes[index];
    return isBox(to)(index) && x1 <= x && x <= x2 && y1 <= y && y <= y2;
  });
  return around.length ? around.reduce((best, index) => (area(index) < area(best) ? index : best)) : -1;
}

// The same word or box in another model's view, whose tokens and boxes may differ. Null if there is none.
function translated(pick, panel) {
  if (pick === null || pick.panel === panel.number) return pick;
  if (!state.linked) return null;
  const from = panels[pick.panel].view;
  const to = panel.view;
  let index;
  if (pick.kind === "words") {
    const [text, raw] = from.words[pick.index];
    index = to.words.findIndex((word) => (raw >= 0 ? word[1] === raw : word[1] < 0 && word[0] === text));
  } else {
    index = sameBox(from, to, pick.index);
  }
  return index < 0 ? null : { kind: pick.kind, panel: panel.number, index };
}

function choose(kind, panel, index) {
  state.pick = { kind, panel: panel.number, index };
  fitLayers();
  update();
}

// In models whose words and patches have separate layers, switch to a layer of the selected side.
function fitLayers() {
  for (const panel of panels) {
    const pick = translated(state.pick, panel);
    const here = state.panels[panel.number];
    const { layers } = panel.view;
    if (pick === null || readsFrom(layers[here.layer], pick.kind)) continue;
    const able = [...layers.keys()].filter((layer) => readsFrom(layers[layer], pick.kind));
    const same = able.find((layer) => layers[layer].number === layers[here.layer].number);
    const layer = same === undefined ? able[0] : same;
    if (layer === undefined) continue;
    here.layer = layer;
    if (here.head >= layers[layer].heads) here.head = MEAN;
  }
}

function chooseHead(panel, layer, head) {
  const name = (view, number) => `${view.layers[number].name} ${view.layers[number].number}`;
  for (const other of panels) {
    if (other !== panel && !state.linked) continue;
    const same = other.view.layers.findIndex(
      (one, number) => name(other.view, number) === name(panel.view, layer) && head < one.heads,
    );
    if (same >= 0) state.panels[other.number] = { layer: same, head };
  }
  update();
}

// Start with each model's head whose words attend most to boxes in the first pair ...
function bestHeads() {
  panels.forEach(({ number, view }) => {
    const words = [...view.words.keys()].filter(isWord(view));
    let most = 0;
    view.layers.forEach((layer, place) => {
      if (!holds(layer, "words", "boxes")) return;
      for (let head = 0; head < layer.heads; head += 1) {
        const shares = words.map((index) => sum(given(view, layer, head, { kind: "words", index }, "boxes"), isBox(view)));
        const share = sum(shares);
        if (share > most) {
          most = share;
          state.panels[number] = { layer: place, head };
        }
      }
    });
  });
}

// ... and the word with the most attention to boxes in it; a box, if words do not attend to boxes.
function bestPick() {
  const { view } = panels[0];
  const meet = view.layers.some((layer) => holds(layer, "words", "boxes"));
  if (!meet && view.layers.some((layer) => holds(layer, "boxes", "boxes"))) {
    state.pick = { kind: "boxes", panel: 0, index: view.whole.length ? view.whole[0] : 0 };
    return;
  }
  bestWord(view);
}

function bestWord(view) {
  const { layer, head } = state.panels[0];
  const isLong = (word) => word[1] >= 0 && word[0].length > 2;
  const fits = view.words.some(isLong) ? isLong : (word) => word[1] >= 0;
  let most = -1;
  view.words.forEach((word, index) => {
    if (!fits(word)) return;
    const pick = { kind: "words", panel: 0, index };
    const { columns, keep } = across(view, pick);
    const shares = given(view, view.layers[layer], head, pick, columns);
    const share = shares === null ? 0 : sum(shares, (column) => keep(column) && (columns === "boxes" || column !== index));
    if (share > most) {
      most = share;
      state.pick = pick;
    }
  });
}

// -- panels -----------------------------------------------------------------------------------------------------------

// Arrow keys move inside a group, which is one Tab stop; a row has `wide` buttons.
function roving(group, buttons, wide) {
  buttons.forEach((button, index) => {
    button.tabIndex = index === 0 ? 0 : -1;
  });
  group.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    if (at < 0) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide };
    let to = at + (steps[event.key] || 0);
    if (event.key === "Home") to = 0;
    if (event.key === "End") to = buttons.length - 1;
    if (to === at || to < 0 || to >= buttons.length) return;
    event.preventDefault();
    buttons[to].focus();
    buttons[to].click();
  });
}

function stop(buttons, index) {
  buttons.forEach((button, number) => {
    button.tabIndex = number === Math.max(0, index) ? 0 : -1;
  });
}

function photoOf(pair, panel) {
  const { view } = panel;
  const image = make("img", { src: pair.photo.src, alt: `Photo ${pair.id}`, width: pair.photo.width, height: pair.photo.height });
  const area = (box) => (box[2] - box[0]) * (box[3] - box[1]);
  const inner = view.boxes.map((_, index) => index).filter(isBox(view));
  const areas = inner.map((index) => area(view.boxes[index]));
  panel.tiled = inner.length > 3 && Math.max(...areas) < 1.3 * Math.min(...areas);
  const boxes = make("div", { class: panel.tiled ? "boxes tiles" : "boxes", role: "group", "aria-label": "Boxes" });
  // Small boxes are above large ones, so that they can be selected.
  const order = [...inner].sort((a, b) => area(view.boxes[b]) - area(view.boxes[a]));
  const buttons = inner.map((index) => {
    const [x1, y1, x2, y2] = view.boxes[index];
    const button = make("button", { class: x1 > 0.6 ? "box flip" : "box", type: "button", onclick: () => choose("boxes", panel, index) });
    button.append(make("span", { class: "label" }));
    const style = { left: x1, top: y1, width: x2 - x1, height: y2 - y1 };
    for (const [name, share] of Object.entries(style)) button.style[name] = `${share * 100}%`;
    button.style.zIndex = order.indexOf(index) + 1;
    panel.boxes[index] = button;
    return button;
  });
  boxes.append(...buttons);
  const first = inner.length ? view.boxes[inner[0]][1] : 0;
  roving(boxes, buttons, view.patches ? inner.filter((index) => view.boxes[index][1] === first).length : 1);
  for (const [x1, y1, x2, y2] of pair.gold) {
    const mark = make("div", { class: "gold" });
    const style = { left: x1, top: y1, width: x2 - x1, height: y2 - y1 };
    for (const [name, share] of Object.entries(style)) mark.style[name] = `${share * 100}%`;
    boxes.append(mark);
  }
  const figure = make("figure", { class: pair.photo.width < TINY ? "photo tiny" : "photo" }, image, boxes);
  figure.style.setProperty("--aspect", pair.photo.width / pair.photo.height);
  panel.photo = figure;
  return figure;
}

function wordButton(text, isSpecial, pick) {
  return make(
    "button",
    { class: isSpecial ? "word special" : "word", type: "button", onclick: pick },
    make("span", { class: "text" }, text),
    make("span", { class: "number", "aria-hidden": "true" }),
  );
}

function wordsOf(panel) {
  const { view } = panel;
  const group = make("div", { class: "words", role: "group", "aria-label": "Words" });
  panel.words = view.words.map(([text, raw], index) => wordButton(text, raw < 0, () => choose("words", panel, index)));
  group.append(...panel.words);
  roving(group, panel.words, 1);
  return group;
}

function wholesOf(panel) {
  const group = make("div", { class: "words wholes", role: "group", "aria-label": wholeOf(panel.view) });
  for (const index of panel.view.whole) {
    const button = wordButton(wholeOf(panel.view), true, () => choose("boxes", panel, index));
    panel.boxes[index] = button;
    group.append(button);
  }
  return group;
}

function titleOf(layer) {
  return layer.name === "self" ? `${layer.number}` : `${layer.name} ${layer.number}`;
}

function pickersOf(panel) {
  const { view } = panel;
  panel.layer = make("select", { onchange: () => chooseHead(panel, Number(panel.layer.value), Number(panel.head.value)) });
  view.layers.forEach((layer, index) => panel.layer.append(make("option", { value: index }, titleOf(layer))));
  panel.head = make("select", { onchange: () => chooseHead(panel, Number(panel.layer.value), Number(panel.head.value)) });
  panel.head.append(make("option", { value: MEAN }, "mean of all"));
  const most = Math.max(...view.layers.map((layer) => layer.heads));
  for (let head = 0; head < most; head += 1) panel.head.append(make("option", { value: head }, `${head}`));
  return make("div", { class: "pickers" }, make("label", {}, "Layer ", panel.layer), make("label", {}, "Head ", panel.head));
}

function headsOf(panel) {
  const { view } = panel;
  const most = Math.max(...view.layers.map((layer) => layer.heads));
  const columns = [...Array(most).keys(), MEAN];
  panel.cells = [];
  const named = columns.map((head) => make("th", { scope: "col" }, head === MEAN ? "all" : `${head}`));
  const rows = view.layers.map((layer, number) => {
    const cells = columns.map((head) => {
      if (head >= layer.heads) return make("td", { role: "gridcell" });
      const button = make("button", { type: "button", role: "gridcell", onclick: () => chooseHead(panel, number, head) });
      panel.cells.push({ button, layer: number, head });
      return make("td", { role: "presentation" }, button);
    });
    return make("tr", { role: "row" }, make("th", { scope: "row" }, titleOf(layer)), ...cells);
  });
  const isNamed = view.layers.some((layer) => layer.name !== "self");
  const table = make("table", { class: isNamed ? "heads named" : "heads", role: "grid", "aria-label": "Layers and heads" });
  table.append(make("thead", {}, make("tr", { role: "row" }, make("th", { scope: "col", "aria-label": "layer" }), ...named)));
  table.append(make("tbody", {}, ...rows));
  roving(table, panel.cells.map((cell) => cell.button), columns.length);
  panel.about = make("p", { class: "legend" });
  return make("div", {}, table, panel.about);
}

// The model's answers to the text and the photo, best first.
function answerOf(answer) {
  if (!answer) return "";
  const said = answer.ranked.map(([text, share], index) => {
    const number = share === null ? "" : ` (${(100 * share).toFixed(1)} %)`;
    return index === 0 ? make("b", {}, `${text}${number}`) : make("span", {}, `${text}${number}`);
  });
  const parts = said.flatMap((one, index) => (index === 0 ? [one] : [index === 1 ? "; next: " : ", ", one]));
  return make("p", { class: "answer" }, answer.title, ...(parts.length ? [": ", ...parts] : []), ".");
}

function panelOf(number) {
  const pair = data.pairs[state.pair];
  const panel = { number, view: pair.views[number], boxes: [], words: [] };
  const notes = [...data.models[number].notes, ...panel.view.notes].map((note) => make("p", { class: "note" }, note));
  panel.said = make("p", { class: "said", role: "status" });
  panel.legend = make("p", { class: "legend" });
  const left = make("div", { class: "stage" });
  if (pair.photo) left.append(photoOf(pair, panel));
  if (panel.view.whole.length) left.append(wholesOf(panel));
  if (panel.view.words.length) left.append(wordsOf(panel));
  left.append(panel.legend, panel.said);
  const right = make("div", {}, pickersOf(panel), headsOf(panel));
  const name = data.models[number].name;
  panel.element = make(
    "section",
    { class: "panel", "aria-label": name },
    make("h2", {}, name),
    answerOf(panel.view.answer),
    ...notes,
    make("div", { class: "body" }, left, right),
  );
  return panel;
}

// -- shades -----------------------------------------------------------------------------------------------------------

function readings() {
  return panels.map((panel) => {
    const { layer, head } = state.panels[panel.number];
    const pick = translated(state.pick, panel);
    const shown = panel.view.layers[layer];
    const none = { pick: null, boxes: null, words: null, boxRatios: null, wordRatios: null, even: 0, layer: shown, head };
    if (pick === null) return none;
    const boxes = given(panel.view, shown, head, pick, "boxes");
    const words = given(panel.view, shown, head, pick, "words");
    if (boxes === null && words === null) return { ...none, pick };
    return {
      ...none,
      pick,
      boxes,
      words,
      boxRatios: timesEven(panel.view, shown, pick, boxes, "boxes"),
      wordRatios: timesEven(panel.view, shown, pick, words, "words"),
      even: evenOf(shown, pick),
    };
  });
}

// Orange from the even share (ratio 1) up to `most` even shares, purple from there down to 0.
function shade(button, share, ratio, most) {
  const isLess = ratio !== null && ratio < 1;
  let dark = 0;
  if (isLess) dark = 1 - ratio;
  else if (ratio !== null) dark = Math.min(1, (ratio - 1) / (most - 1));
  button.style.setProperty("--share", dark.toFixed(3));
  button.dataset.share = share === null ? "" : share.toFixed(4);
  button.classList.toggle("less", isLess);
  button.classList.toggle("strong", !isLess && dark > STRONG);
}

// A scale from no attention to the full shade, with a mark at even attention.
function scale(most) {
  const bar = make("span", { class: "bar", "aria-hidden": "true" }, make("span", { class: "even" }));
  bar.style.setProperty("--even", `${(100 / most).toFixed(1)}%`);
  return bar;
}

// Counted without the whole image, so that a box has the same number in models with and without it.
function numberOf(view, index) {
  return index - view.whole.filter((one) => one < index).length;
}

function boxName(view, index) {
  if (view.whole.includes(index)) return wholeOf(view);
  return `${view.patches ? "patch" : "box"} ${numberOf(view, index)}${view.names[index] ? ` (${view.names[index]})` : ""}`;
}

function nameOf(view, pick) {
  return pick.kind === "words" ? `“${view.words[pick.index][0]}”` : boxName(view, pick.index);
}

function legendOf(panel, one, mostBox, mostWord) {
  const { view } = panel;
  const told = (name, most, shares, ratios, keep) => {
    const order = [...shares.keys()].filter(keep).sort((a, b) => ratios[b] - ratios[a]);
    const strongest = order.length ? `, strongest ${percent(shares[order[0]])} (${times(ratios[order[0]])} even)` : "";
    const text = `${name}: even ${percent(one.even)}${strongest}, full shade ${times(most)} even`;
    return make("span", { class: "scale" }, scale(most), make("span", {}, text));
  };
  const parts = [];
  const hasBoxes = one.boxes !== null && view.boxes.length;
  if (hasBoxes) parts.push(told(view.patches ? "patch" : "box", mostBox, one.boxes, one.boxRatios, isBox(view)));
  if (one.words !== null) parts.push(told("word of one token", mostWord, one.words, one.wordRatios, isWord(view)));
  panel.legend.replaceChildren(...(one.pick === null ? [] : parts));
}

// The same in words, so that nothing is conveyed by colour alone.
function say(panel, one) {
  const { view } = panel;
  const place = `layer ${titleOf(one.layer)}, ${one.head === MEAN ? "mean of all heads" : `head ${one.head}`}`;
  if (one.pick === null) {
    panel.said.textContent = `Select a word or a ${view.patches ? "patch" : "box"} (${place}).`;
    return;
  }
  const parts = [];
  if (one.boxes !== null && view.boxes.length) {
    const order = [...one.boxes.keys()].filter(isBox(view)).sort((a, b) => one.boxes[b] - one.boxes[a]);
    const best = order.slice(0, TOP).map((index) => `${boxName(view, index)} ${percent(one.boxes[index])}`);
    const evenly = one.even * order.length;
    parts.push(`${percent(sum(one.boxes, isBox(view)))} to ${boxesOf(view)} (${best.join(", ")}; even would be ${percent(evenly)}, ${percent(one.even)} each)`);
    if (view.whole.length) parts.push(`${percent(sum(one.boxes, (index) => !isBox(view)(index)))} to ${wholeOf(view)}`);
  }
  if (one.words !== null) {
    const order = [...one.words.keys()].filter(isWord(view)).sort((a, b) => one.words[b] - one.words[a]);
    const best = order.slice(0, TOP).map((index) => `“${view.words[index][0]}” ${percent(one.words[index])}`);
    parts.push(`${percent(sum(one.words, isWord(view)))} to words${best.length ? ` (${best.join(", ")})` : ""}`);
    parts.push(`${percent(sum(one.words, (index) => !isWord(view)(index)))} to special tokens`);
  }
  const name = nameOf(view, one.pick);
  panel.said.textContent = parts.length ? `${name} in ${place}: ${parts.join("; ")}.` : `${name}: no attention to anything shown here in ${place}.`;
}

function shadeBoxes(panel, one, most) {
  const { view } = panel;
  const ratioOf = (index) => (one.boxes === null ? null : one.boxRatios[index]);
  const order = one.boxes === null ? [] : [...one.boxes.keys()].filter(isBox(view)).sort((a, b) => one.boxes[b] - one.boxes[a]);
  const top = order.slice(0, panel.tiled ? 1 : TOP).filter((index) => one.boxes[index] > 0);
  panel.boxes.forEach((button, index) => {
    const share = one.boxes === null ? null : one.boxes[index];
    const isPicked = one.pick !== null && one.pick.kind === "boxes" && one.pick.index === index;
    shade(button, share, ratioOf(index), most);
    button.classList.toggle("top", top.includes(index));
    button.setAttribute("aria-pressed", isPicked);
    const number = share === null ? "" : percent(share);
    const full = share === null ? "" : `${number}, ${times(ratioOf(index))} even`;
    button.setAttribute("aria-label", `${boxName(view, index)} ${full}`.trim());
    button.title = full;
    if (view.whole.includes(index)) button.querySelector(".number").textContent = number;
    else button.querySelector(".label").textContent = `${numberOf(view, index)} ${view.names[index] || ""} ${number}`.replace(/ +/g, " ").trim();
  });
  if (panel.photo) panel.photo.classList.toggle("shaded", one.boxes !== null);
  const inner = panel.boxes.filter((_, index) => isBox(view)(index));
  stop(inner, one.pick !== null && one.pick.kind === "boxes" ? inner.indexOf(panel.boxes[one.pick.index]) : 0);
}

function shadeWords(panel, one, most) {
  panel.words.forEach((button, index) => {
    const share = one.words === null ? null : one.words[index];
    const isPicked = one.pick !== null && one.pick.kind === "words" && one.pick.index === index;
    shade(button, share, one.words === null ? null : one.wordRatios[index], most);
    button.setAttribute("aria-pressed", isPicked);
    const number = share === null ? "" : percent(share);
    const full = share === null ? "" : `${number}, ${times(one.wordRatios[index])} even`;
    button.querySelector(".number").textContent = number;
    button.setAttribute("aria-label", `${panel.view.words[index][0]} ${full}`.trim());
    button.title = full;
  });
  stop(panel.words, one.pick !== null && one.pick.kind === "words" ? one.pick.index : 0);
}

function shadeHeads(panel, one) {
  const { view } = panel;
  const pick = one.pick;
  const target = pick === null ? null : across(view, pick);
  const shares = panel.cells.map((cell) => {
    const found = pick === null ? null : given(view, view.layers[cell.layer], cell.head, pick, target.columns);
    return found === null ? 0 : sum(found, target.keep);
  });
  // The share of that side under even attention, by layer: the layers of two towers have different positions.
  const evens = view.layers.map((layer) => {
    if (pick === null || !holds(layer, pick.kind, target.columns)) return 0;
    const places = placesOf(view, target.columns);
    // In a causal text tower, a word attends only to itself and earlier words.
    return Math.min(1, evenOf(layer, pick) * sum(view[target.columns].map((_, index) => places(index)), target.keep));
  });
  const ratios = panel.cells.map((cell, index) => (evens[cell.layer] > 0 ? shares[index] / evens[cell.layer] : null));
  const even = Math.max(...evens);
  // Twice an even share may exceed 1.
  const most = Math.max(even > 0 ? Math.min(TWICE, 1 / even) : TWICE, ...ratios);
  const here = state.panels[panel.number];
  let at = 0;
  panel.cells.forEach(({ button, layer, head }, index) => {
    const isPicked = layer === here.layer && head === here.head;
    if (isPicked) at = index;
    shade(button, shares[index], ratios[index], most);
    button.setAttribute("aria-selected", isPicked);
    const name = head === MEAN ? "mean of all heads" : `head ${head}`;
    const told = `layer ${titleOf(view.layers[layer])}, ${name}: ${percent(shares[index])}`;
    button.setAttribute("aria-label", told);
    button.title = told;
  });
  stop(panel.cells.map((cell) => cell.button), at);
  const side = target === null || target.columns === "words" ? "words" : boxesOf(view);
  const what = pick === null ? "" : `share of the attention of ${nameOf(view, pick)} that goes to ${side}`;
  const told = `${what}: even ${percent(even)}, largest ${percent(largest(shares))}`;
  panel.about.replaceChildren(...(pick === null || even === 0 ? [] : [scale(most), make("span", {}, told)]));
}

function update() {
  const told = readings();
  const most = (kind, keep) =>
    told.map((one, number) => Math.max(TWICE, one[kind] === null ? 0 : largest(one[kind], keep(panels[number].view))));
  const ofBoxes = most("boxRatios", isBox);
  const ofWords = most("wordRatios", isWord);
  panels.forEach((panel, number) => {
    const mostBox = state.shared ? Math.max(...ofBoxes) : ofBoxes[number];
    const mostWord = state.shared ? Math.max(...ofWords) : ofWords[number];
    const one = told[number];
    panel.layer.value = state.panels[number].layer;
    panel.head.value = state.panels[number].head;
    shadeBoxes(panel, one, mostBox);
    shadeWords(panel, one, mostWord);
    shadeHeads(panel, one);
    legendOf(panel, one, mostBox, mostWord);
    say(panel, one);
  });
}

// -- the page ---------------------------------------------------------------------------------------------------------

function show(number) {
  state.pair = number;
  unpacked.clear();
  panels = data.models.map((_, index) => panelOf(index));
  document.getElementById("panels").replaceChildren(...panels.map((panel) => panel.element));
  bestPick();
  fitLayers();
  tools();
  update();
}

// Each phrase of a text is a pair of its own.
function titleOfPair({ phrase, text }) {
  return phrase ? `${phrase}: ${text}` : text;
}

function pairPicker() {
  const picker = make("select", { "aria-label": "Image and text", onchange: () => show(Number(picker.value)) });
  data.pairs.forEach((pair, number) => picker.append(make("option", { value: number }, `${number + 1}. ${titleOfPair(pair)}`.slice(0, 120))));
  picker.value = state.pair;
  const at = state.pair;
  const go = (to) => () => {
    show(to);
    document.getElementById(to > at ? "next" : "previous").focus();
  };
  return make(
    "div",
    { class: "row" },
    make("button", { type: "button", id: "previous", disabled: at <= 0, "aria-label": "Previous", onclick: go(at - 1) }, "◀"),
    make("label", {}, picker),
    make("button", { type: "button", id: "next", disabled: at >= data.pairs.length - 1, "aria-label": "Next", onclick: go(at + 1) }, "▶"),
  );
}

function check(title, name) {
  const box = make("input", { type: "checkbox", onchange: () => {
    state[name] = box.checked;
    document.body.classList.toggle("grey", state.grey);
    update();
  } });
  box.checked = state[name];
  return make("label", {}, box, title);
}

function theme() {
  const button = make("button", { type: "button", onclick: () => {
    state.theme = (state.theme + 1) % THEMES.length;
    const name = THEMES[state.theme];
    document.documentElement.dataset.theme = name === "system" ? "" : name;
    button.textContent = `Colours: ${name}`;
  } }, `Colours: ${THEMES[state.theme]}`);
  return button;
}

function tools() {
  const parts = [];
  if (data.pairs.length > 1) parts.push(pairPicker());
  if (data.models.length > 1) parts.push(check("same word and head everywhere", "linked"), check("same scale", "shared"));
  if (data.pairs[state.pair].photo) parts.push(check("grey photo", "grey"));
  parts.push(theme());
  document.getElementById("tools").replaceChildren(...parts);
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  state.pick = null;
  update();
});
state.grey = true;
document.body.classList.add("grey");
panels = data.models.map((_, number) => ({ number, view: data.pairs[0].views[number] }));
bestHeads();
show(0);
