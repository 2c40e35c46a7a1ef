// The recent past of one lock as swim lanes, and as a table.

import { el, foreign, svg, table } from './dom.js';
import { brief, count, time, timeOfDay } from './format.js';
import { sessionName, tokenText } from './rows.js';

const LANE = 30;
const MOST_LANES = 16;
const SHORTEST = 10_000;

const isForced = (how) => how?.startsWith('forced') ?? false;
const isLoss = (how) => how === 'expired' || isForced(how);

/**
 * Follows the moments and collects bars and marks for each session.
 *
 * A bar is `{ kind, from, to, token, how }`; `to` is `null` while it lasts. Bars that began before the first
 * moment begin at `null`, unless `waits` knows since when the session waited.
 */
class Lanes {
  #lanes = new Map();
  #laneOfToken = new Map();

  #waits;

  constructor({ timeline, holders, waiters }, waits) {
    this.#waits = waits;
    for (const moment of timeline) this.#take(moment);
    for (const holder of holders) this.#addHolder(holder);
    for (const waiter of waiters) this.#addWaiter(waiter);
  }

  /** Returns the lanes with the latest activity, in the order in which they came. */
  latest(most) {
    const lanes = [...this.#lanes.values()];
    const busy = lanes.map((lane, order) => ({ lane, order, last: lane.isNow ? Infinity : lane.last }));
    busy.sort((a, b) => b.last - a.last);
    const kept = busy.slice(0, most).sort((a, b) => a.order - b.order).map(({ lane }) => lane);
    return { lanes: kept, more: lanes.length - kept.length };
  }

  #lane({ session, label, token }) {
    const ofToken = this.#laneOfToken.get(token);
    if (session === null && ofToken) return ofToken;
    const id = session ?? `token ${token}`;
    if (!this.#lanes.has(id)) this.#lanes.set(id, { session, label, bars: [], marks: [], last: 0, isNow: false });
    const lane = this.#lanes.get(id);
    lane.label ??= label;
    if (token !== null && token !== undefined) this.#laneOfToken.set(token, lane);
    return lane;
  }

  #take(moment) {
    const { at, event, token, how } = moment;
    if (moment.session === null && (token === null || token === undefined)) return;
    const lane = this.#lane(moment);
    lane.last = at;
    if (event === 'queued') {
      lane.bars.push({ kind: 'waits', from: at, to: null });
    } else if (event === 'left-queue') {
      this.#finish(lane, 'waits', at, { how });
    } else if (event === 'granted') {
      if (this.#open(lane, 'waits') || this.#unrecorded(lane, at) !== null) this.#finish(lane, 'waits', at, { how: 'granted' });
      lane.bars.push({ kind: 'holds', from: at, to: null, token });
    } else if (event === 'ended') {
      this.#finish(lane, 'holds', at, { token, how });
      if (isLoss(how)) lane.marks.push({ kind: isForced(how) ? 'forced' : 'lost', at, token, how });
    } else if (event === 'withheld') {
      lane.bars.push({ kind: 'withheld', from: at, to: null, token });
    } else if (event === 'delay-ended') {
      this.#finish(lane, 'withheld', at, { token });
    } else if (event === 'published') {
      lane.marks.push({ kind: 'published', at, token });
    }
  }

  #open(lane, kind, token) {
    return lane.bars.findLast((bar) => bar.kind === kind && bar.to === null && (token === undefined || bar.token === token));
  }

  #finish(lane, kind, at, { token, how }) {
    const bar = this.#open(lane, kind, token);
    if (bar) Object.assign(bar, { to: at, how });
    else lane.bars.push({ kind, from: kind === 'waits' ? this.#unrecorded(lane, at) : null, to: at, token, how });
  }

  /** Returns when a wait began that ended at `at` and began before the records, or `null`. */
  #unrecorded({ session, bars }, at) {
    const isAfterBars = (since) => bars.every(({ to }) => to !== null && to <= since);
    return this.#waits.get(session)?.find((since) => since <= at && isAfterBars(since)) ?? null;
  }

  #addHolder(holder) {
    const lane = this.#lane(holder);
    lane.isNow = true;
    const kind = holder.session === null ? 'withheld' : 'holds';
    if (!this.#open(lane, kind, holder.token)) lane.bars.push({ kind, from: holder.since, to: null, token: holder.token });
  }

  #addWaiter(waiter) {
    const lane = this.#lane(waiter);
    lane.isNow = true;
    if (!this.#open(lane, 'waits')) lane.bars.push({ kind: 'waits', from: waiter.since, to: null });
  }
}

const VERBS = { holds: 'held it', waits: 'waited', withheld: 'it was withheld' };

/** Draws lanes between two times. Positions are in percent, so that the drawing follows the width of the page. */
class Drawing {
  constructor(from, { now, clock, isCurrent }) {
    this.from = from;
    this.now = now;
    this.clock = clock;
    this.isCurrent = isCurrent;
  }

  timeOfDay(at) {
    return timeOfDay(this.clock - at);
  }

  /** Whether a bar began before the time that is shown. */
  beganEarlier({ from }) {
    return from === null || from < this.from;
  }

  x(at) {
    const share = (at - this.from) / (this.now - this.from);
    return `${(Math.min(1, Math.max(0, share)) * 100).toFixed(2)}%`;
  }

  bar(lane, bar, y) {
    const { kind, from, to, token, how } = bar;
    const [start, end] = [Math.max(from ?? this.from, this.from), to ?? this.now];
    const thickness = kind === 'waits' ? 4 : 14;
    const width = Math.max(0.3, (Math.max(0, end - start) / (this.now - this.from)) * 100);
    const still = this.isCurrent ? 'until now' : `until ${this.timeOfDay(this.now)} at least`;
    const until = to === null ? still : `until ${this.timeOfDay(to)}${how ? `, ${brief(how)}` : ''}`;
    const began = `${from === null ? '' : ` from ${this.timeOfDay(from)}`}${this.beganEarlier(bar) ? ' (began earlier)' : ''}`;
    const grant = kind === 'waits' ? '' : `, token ${tokenText(token)}`;
    const text = `${brief(sessionName(lane))} ${VERBS[kind]}${began} ${until}${grant}`;
    const place = { x: this.x(Math.min(start, this.now - (this.now - this.from) * 0.003)), y: y + (LANE - thickness) / 2, width: `${Math.min(100, width).toFixed(2)}%`, height: thickness, rx: 2 };
    const title = svg('title', null, text);
    if (!this.beganEarlier(bar)) return svg('rect', { class: kind, ...place }, title);
    const slits = [4, 10].map((x) => svg('rect', { class: 'slit', x, y: place.y - 1, width: 3, height: thickness + 2 }));
    return svg('g', null, title, svg('rect', { class: kind, ...place }), slits);
  }

  /** Marks differ in shape, not only in colour. */
  mark({ kind, at, token, how }, y) {
    const shapes = { lost: 'M-5-5 5 5M5-5-5 5', forced: 'M0-7 7 0 0 7-7 0z', published: 'M0-3.5a3.5 3.5 0 1 0 .01 0z' };
    const title = svg('title', null, `${how ? brief(how) : kind} at ${this.timeOfDay(at)}, token ${tokenText(token)}`);
    return svg('svg', { x: this.x(at), y: y + LANE / 2, overflow: 'visible' }, svg('path', { class: `mark ${kind}`, d: shapes[kind] }, title));
  }

  lane(lane, index) {
    const y = index * LANE;
    const line = svg('line', { class: 'rule', x1: 0, x2: '100%', y1: y + LANE, y2: y + LANE });
    return [line, ...lane.bars.map((bar) => this.bar(lane, bar, y)), ...lane.marks.map((mark) => this.mark(mark, y))];
  }

  gridLine(quarter, height) {
    return svg('line', { class: 'grid', x1: `${quarter * 25}%`, x2: `${quarter * 25}%`, y1: 0, y2: height });
  }
}

const key = (name, text) => el('li', null, el('span', { class: `key ${name}`, 'aria-hidden': 'true' }), text);
const legend = () => el('ul', { class: 'legend' }, key('holds', 'holds'), key('waits', 'waits'), key('withheld', 'withheld'), key('earlier', 'began earlier'),
  key('lost', '✕ expired'), key('forced', '◆ forced'), key('published', '● published'));

/** Finds where the drawing begins: a little before the first thing to see, and not before the records begin. */
function beginning(lanes, details, now) {
  const times = lanes.flatMap(({ bars, marks }) => [...bars.flatMap(({ from, to }) => [from, to]), ...marks.map(({ at }) => at)]);
  const known = times.filter((at) => at !== null);
  const first = Math.max(Math.min(now, ...known), details.timeline_from ?? 0);
  return Math.min(first - (now - first) * 0.03, now - SHORTEST);
}

/**
 * Draws the timeline. `waits` lists for each session when the waits began that were seen. `clock` is the time; `now`
 * is the time up to which the state is known.
 */
export function drawTimeline(details, waits, { now, clock, isCurrent }) {
  const { lanes, more } = new Lanes(details, waits).latest(MOST_LANES);
  if (lanes.length === 0) return [el('p', { class: 'dim' }, 'Nothing has happened to this lock since the records began.')];
  const from = beginning(lanes, details, now);
  const drawing = new Drawing(from, { now, clock, isCurrent });
  const height = lanes.length * LANE;
  const span = isCurrent ? `the last ${time(now - from)}` : `${time(now - from)} until ${drawing.timeOfDay(now)}`;
  const early = lanes.flatMap(({ bars }) => bars).filter((bar) => drawing.beganEarlier(bar)).length;
  const began = early === 0 ? '' : ` ${count(early, 'bar', 'bars')} began earlier.`;
  const label = `Timeline of ${count(lanes.length, 'session', 'sessions')} over ${span}.${began} The table below has the same moments.`;
  const picture = svg('svg', { class: 'lanes', role: 'img', 'aria-label': label, height: height + 1 },
    [0, 1, 2, 3, 4].map((quarter) => drawing.gridLine(quarter, height)),
    lanes.map((lane, index) => drawing.lane(lane, index)));
  const axis = [4, 3, 2, 1, 0].map((quarter) => el('span', null, quarter || !isCurrent ? drawing.timeOfDay(now - ((now - from) * quarter) / 4) : 'now'));
  const rest = more > 0 ? [el('p', { class: 'note' }, `${count(more, 'earlier session is', 'earlier sessions are')} only in the table.`)] : [];
  return [
    el('div', { class: 'timeline' },
      el('ol', { class: 'lane-names', 'aria-hidden': 'true' }, lanes.map((lane) => el('li', null, foreign(sessionName(lane), 80)))),
      el('div', null, picture, el('div', { class: 'axis', 'aria-hidden': 'true' }, axis))),
    ...rest, legend()];
}

/** Lists the same moments as a table, the latest first. */
export function momentsTable({ timeline }, clock) {
  const row = (moment) => [
    el('span', { class: 'num' }, timeOfDay(clock - moment.at)),
    moment.event,
    moment.session === null && !moment.label ? '-' : foreign(sessionName(moment)),
    el('span', { class: 'num' }, tokenText(moment.token)),
    [moment.how, moment.why].filter(Boolean).map((text, index) => el('span', null, index ? ': ' : '', foreign(text, 300))),
  ];
  return table('Moments, the latest first', ['Time', 'Event', 'Session', 'Token', 'How'], timeline.toReversed().map(row), { class: 'moments cards' });
}
