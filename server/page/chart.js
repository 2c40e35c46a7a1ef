// A small chart of the last 15 minutes, with a sentence and a table that say the same.

import { el, setText, svg, table } from './dom.js';
import { timeOfDay } from './format.js';

const SPAN = 15 * 60_000;
const MINUTE = 60_000;
const WIDTH = 900;
const HEIGHT = 100;
/** A longer gap between two samples breaks the line. */
const GAP = 5000;

/** Rounds up to 1, 2 or 5 times a power of ten. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-3)));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= value);
  return step * power;
}

const known = (samples, read) => samples.map(read).filter((value) => value !== null);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

/** Returns the path of a line over the samples. */
function linePath(samples, read, now, top) {
  let path = '';
  let lastAt = -Infinity;
  for (const sample of samples) {
    const value = read(sample);
    if (value === null) continue;
    const x = WIDTH * (1 - (now - sample.at) / SPAN);
    const y = HEIGHT * (1 - value / top);
    path += `${sample.at - lastAt > GAP ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`;
    lastAt = sample.at;
  }
  return path;
}

/** Returns a dot for each point of a line that has no neighbour: a path of one point draws nothing. */
const dotsPath = (line) => line.split('M').slice(1).filter((part) => !part.includes('L')).map((part) => `M${part}h.01`).join('');

/** Closes a line to the area below it, one area for each unbroken part. */
function areaPath(line) {
  const close = (part) => {
    const points = part.split('L');
    const x = (point) => point.split(' ')[0];
    return `M${x(points[0])} ${HEIGHT}L${points.join('L')}L${x(points.at(-1))} ${HEIGHT}Z`;
  };
  return line.split('M').slice(1).map(close).join('');
}

/** Groups samples by full minutes before now, the latest first. */
function byMinute(samples, now) {
  const minutes = new Map();
  for (const sample of samples) {
    const ago = Math.floor((now - sample.at) / MINUTE);
    if (!minutes.has(ago)) minutes.set(ago, []);
    minutes.get(ago).push(sample);
  }
  return [...minutes].sort(([a], [b]) => a - b);
}

/** A chart of one or two series `{ name, read, total? }`; `format` prints a value. */
export class Chart {
  #title;
  #series;
  #format;
  #samples = [];
  #now = 0;
  #top = el('span', { class: 'chart-top', 'aria-hidden': 'true' });
  #reading = el('span', { class: 'reading num', 'aria-hidden': 'true' });
  #sentence = el('p', { class: 'chart-text' });
  #cursor = svg('line', { class: 'cursor', y1: 0, y2: HEIGHT, visibility: 'hidden' });
  #details = el('details', { ontoggle: () => this.#drawTable() }, el('summary', null, 'As a table'), el('div'));
  #lines;
  #dots;
  /** The area sets the first series apart from the second without colour. */
  #area = svg('path', { class: 'area' });

  constructor(title, series, format) {
    this.#title = title;
    this.#series = series;
    this.#format = format;
    this.#lines = series.map((_, index) => svg('path', { class: `line line-${index + 1}` }));
    this.#dots = series.map((_, index) => svg('path', { class: `line dots line-${index + 1}` }));
    const middle = svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 });
    const picture = svg('svg', { class: 'chart', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, this.#area, middle, this.#lines, this.#dots, this.#cursor);
    picture.addEventListener('pointermove', (event) => this.#point(event, picture));
    picture.addEventListener('pointerleave', () => this.#leave());
    const legend = series.length < 2 ? null : el('ul', { class: 'legend' },
      series.map(({ name }, index) => el('li', null, el('span', { class: `key line-${index + 1}`, 'aria-hidden': 'true' }), name)));
    this.element = el('section', { class: 'panel chart-panel' },
      el('div', { class: 'chart-head' }, el('h2', null, title), this.#reading, legend),
      el('div', { class: 'chart-box' }, this.#top, picture),
      el('div', { class: 'axis', 'aria-hidden': 'true' }, el('span', null, '15 min ago'), el('span', null, 'now')),
      this.#sentence, this.#details);
  }

  update(samples, now) {
    this.#samples = samples.filter(({ at }) => now - at <= SPAN);
    this.#now = now;
    const most = Math.max(...this.#series.map(({ read }) => largest(known(this.#samples, read))));
    const top = niceTop(most);
    setText(this.#top, most === 0 ? '' : this.#format(top));
    this.#lines.forEach((line, index) => {
      const path = linePath(this.#samples, this.#series[index].read, now, top);
      line.setAttribute('d', path);
      this.#dots[index].setAttribute('d', dotsPath(path));
    });
    this.#area.setAttribute('d', areaPath(this.#lines[0].getAttribute('d')));
    setText(this.#sentence, this.#describe());
    if (this.#details.open) this.#drawTable();
  }

  #describe() {
    const parts = this.#series.map(({ name, read }) => {
      const values = known(this.#samples, read);
      if (values.length === 0) return `${name}: nothing yet`;
      return `${name}: ${this.#format(values.at(-1))} last, ${this.#format(mean(values))} on average, ${this.#format(largest(values))} at most`;
    });
    return `${parts.join('. ')}.`;
  }

  #drawTable() {
    if (!this.#details.open) return;
    const minutes = byMinute(this.#samples, this.#now);
    const cells = (part) => this.#series.flatMap(({ read }) => {
      const values = known(part, read);
      return values.length === 0 ? ['-', '-'] : [this.#format(mean(values)), this.#format(largest(values))];
    });
    const headings = this.#series.flatMap(({ name }) => [`${name}, average`, `${name}, most`]);
    const row = ([ago, part]) => [ago === 0 ? 'this minute' : `${ago} min ago`, ...cells(part)];
    this.#details.lastChild.replaceChildren(table(`${this.#title} by minute`, ['Minute', ...headings], minutes.map(row)));
  }

  #point(event, picture) {
    const box = picture.getBoundingClientRect();
    const at = this.#now - SPAN * (1 - (event.clientX - box.left) / box.width);
    const nearest = this.#samples.reduce((best, sample) => (best && Math.abs(best.at - at) <= Math.abs(sample.at - at) ? best : sample), null);
    if (!nearest) return;
    const x = WIDTH * (1 - (this.#now - nearest.at) / SPAN);
    for (const end of ['x1', 'x2']) this.#cursor.setAttribute(end, x);
    this.#cursor.setAttribute('visibility', 'visible');
    const values = this.#series.map(({ name, read }) => `${name} ${read(nearest) === null ? '-' : this.#format(read(nearest))}`);
    setText(this.#reading, `${timeOfDay(this.#now - nearest.at)}  ${values.join(', ')}`);
  }

  #leave() {
    this.#cursor.setAttribute('visibility', 'hidden');
    setText(this.#reading, '');
  }
}
