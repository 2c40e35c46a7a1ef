// Building elements. Foreign text only ever becomes a text node.

import { brief, cut } from './format.js';

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Creates an HTML element. Attributes that begin with `on` are event listeners. */
export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** Creates an SVG element. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/** Returns text that keeps the order of its path parts: as one piece, `a/ב/1` would be shown as `a/1/ב`. */
function inOrder(text) {
  if (!RIGHT_TO_LEFT.test(text)) return [text];
  return text.split('/').flatMap((part, index) => (index ? ['/', el('bdi', null, part)] : [el('bdi', null, part)]));
}

/** Returns foreign text, escaped, cut, and isolated from the direction of the text around it. */
export const foreign = (text, most) => el('bdi', { dir: 'ltr' }, inOrder(brief(text, most)));

/** Sets the text of an element to text that is already escaped, if it has changed. */
export function setForeign(element, escaped) {
  if (element.shown === escaped) return;
  element.shown = escaped;
  element.replaceChildren(...inOrder(escaped));
}

/** Sets an element's text, if it has changed. */
export function setText(element, text) {
  if (element.shown === text) return;
  element.shown = text;
  element.textContent = text;
}

/** Returns text as nodes. Backticks in it mark code. */
export const prose = (text) => text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? el('code', null, part) : part));

/** Sets an element's text, in which backticks mark code, if it has changed. */
export function setProse(element, text) {
  if (element.shown === text) return;
  element.shown = text;
  element.replaceChildren(...prose(text));
}

/** Sets an attribute, or removes it for `null`. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Texts and bars that change with time. The page calls `tick` a few times a second. */
export class Live {
  #updates = [];

  add(update) {
    this.#updates.push(update);
    update();
  }

  /** Returns an element whose text `make` computes at every tick. */
  text(make) {
    const element = el('span', { class: 'num' });
    this.add(() => setText(element, make()));
    return element;
  }

  tick() {
    for (const update of this.#updates) update();
  }
}

/** Creates the bar that shows the time left. */
export function timeBar() {
  const rest = el('span', { class: 'rest' });
  const text = el('span', { class: 'num' });
  const element = el('span', { class: 'left' }, text, el('span', { class: 'bar', 'aria-hidden': 'true' }, rest));
  const show = (label, fraction, jeopardy) => {
    setText(text, label);
    const state = jeopardy ? 'jeopardy' : fraction === null ? 'unknown' : 'alive';
    if (element.dataset.state !== state) element.dataset.state = state;
    const scale = fraction === null ? 0 : Math.round(fraction * 500) / 500;
    if (rest.scale !== scale) {
      rest.scale = scale;
      rest.style.setProperty('transform', `scaleX(${scale})`);
    }
  };
  return { element, show };
}

/** Creates a table with a caption and column headings. `rows` are arrays of cells. */
export function table(caption, headings, rows, attributes) {
  const head = el('tr', null, headings.map((heading) => el('th', { scope: 'col' }, heading)));
  const cell = (content, column) => el('td', { 'data-column': headings[column] }, content);
  const body = rows.map((cells) => el('tr', null, cells.map(cell)));
  return el('table', attributes, el('caption', { class: 'hidden' }, caption), el('thead', null, head), el('tbody', null, body));
}

async function copy(text) {
  // The clipboard API needs HTTPS or localhost; an older command works everywhere.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el('textarea', { class: 'hidden', 'aria-hidden': 'true' });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand('copy');
  area.remove();
  if (!copied) throw new Error('the browser refused to copy');
  return undefined;
}

/** Creates a button that copies `text` and says so. */
export function copyButton(text, name = 'Copy') {
  const label = el('span', { role: 'status' }, name);
  const button = el('button', { type: 'button', class: 'quiet copy' }, label);
  button.addEventListener('click', async () => {
    label.textContent = await copy(text).then(() => 'Copied', () => 'Not copied');
    button.focus();
    setTimeout(() => { label.textContent = name; }, 1500);
  });
  return button;
}

/** Shows a command, which may be long, with a button that copies it. */
export function command(text, what) {
  return el('div', { class: 'command' },
    el('span', { class: 'what' }, what),
    el('code', null, inOrder(cut(text, 240))),
    copyButton(text));
}
