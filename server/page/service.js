// The service or another engine: what it does each second, how long things take, and the members of the cluster.

import { Chart } from './chart.js';
import { el, setText, table } from './dom.js';
import { count, latency, number } from './format.js';

function rate(value) {
  if (value > 0 && value < 0.1) return '<0.1/s';
  return `${value < 10 && !Number.isInteger(value) ? value.toFixed(1) : number(Math.round(value))}/s`;
}

const amount = (value) => number(Math.round(value));
const series = (name, field) => ({ name, read: (sample) => sample[field] ?? null });

const CHARTS = [
  { title: 'Grants and hand-overs', lines: [series('Grants', 'grants'), series('Hand-overs', 'handovers')], format: rate },
  { title: 'Losses and expiries', lines: [series('Losses', 'losses'), series('Expiries', 'expiries')], format: rate },
  { title: 'Waits', lines: [series('p50', 'wait_p50'), series('p99', 'wait_p99')], format: latency },
  { title: 'Disk', lines: [series('p50', 'disk_p50'), series('p99', 'disk_p99')], format: latency, optional: 'disk_p99' },
  { title: 'Locks and waiters', lines: [series('Locks in use', 'locks'), series('Waiting', 'waiting')], format: amount },
  { title: 'Sessions', lines: [series('Sessions', 'sessions')], format: amount, optional: 'sessions' },
];

/** The view of the service, or of another engine. */
export class ServiceView {
  #store;
  #lastSample = null;
  #summary = el('p', { class: 'sentence' });
  #members = el('div');
  #charts = CHARTS.map(({ title, lines, format, optional }) => ({ chart: new Chart(title, lines, format), optional }));

  constructor({ store, me }) {
    this.#store = store;
    this.title = me.engine === 'service' ? 'Service' : 'Engine';
    this.element = el('div', { class: 'view service' },
      el('div', { class: 'bar-top' }, el('h1', { id: 'title', tabindex: '-1' }, this.title),
        el('p', { class: 'summary' }, `${me.engine} at ${me.where}, version ${me.version}`)),
      this.#summary,
      this.#members,
      el('div', { class: 'charts' }, this.#charts.map(({ chart }) => chart.element)),
      el('p', { class: 'note' }, 'A hand-over is a grant to a session that waited. A loss is a grant that ended by expiry or force. An expiry is a session that was not kept alive.'));
  }

  close() {}

  update() {
    const { samples } = this.#store;
    const latest = samples.at(-1) ?? null;
    if (latest === this.#lastSample && latest !== null) return;
    this.#lastSample = latest;
    this.#describe(latest);
    for (const { chart, optional } of this.#charts) {
      chart.element.hidden = Boolean(optional) && samples.every((sample) => (sample[optional] ?? null) === null);
      if (!chart.element.hidden) chart.update(samples, this.#store.clock());
    }
    this.#drawMembers();
  }

  tick() {}

  #describe(sample) {
    if (!sample) return setText(this.#summary, 'No numbers yet.');
    const sessions = sample.sessions === null ? '' : `, ${count(sample.sessions, 'session', 'sessions')}`;
    return setText(this.#summary, `${count(sample.locks, 'lock', 'locks')} in use, ${number(sample.waiting)} waiting${sessions}. ${count(sample.grants, 'grant', 'grants')} and ${count(sample.losses, 'loss', 'losses')} in the last second.`);
  }

  #drawMembers() {
    const { members } = this.#store;
    const signature = JSON.stringify(members);
    if (signature === this.signature) return;
    this.signature = signature;
    this.#members.replaceChildren(...(members === null ? [] : [cluster(members)]));
  }
}

function leadership(members) {
  const leader = members.find(({ role }) => role === 'leader');
  const away = members.filter(({ reachable }) => reachable === false).length;
  const lost = away === 0 ? 'All members that this one knows about can be reached.' : `${count(away, 'member', 'members')} cannot be reached.`;
  return `${leader ? `Member ${leader.id} (${leader.address}) leads.` : 'No member leads: grants wait.'} ${away === 0 && members.some(({ reachable }) => reachable === null) ? '' : lost}`;
}

function cluster(members) {
  const reach = { true: 'yes', false: 'no', null: 'unknown' };
  const row = ({ id, address, role, lag, is_self: isSelf, reachable }) => [
    `${id}${isSelf ? ' (this one)' : ''}`, address,
    el('span', { class: role === 'leader' ? 'tag lead' : 'tag' }, role),
    lag === null ? '-' : count(lag, 'entry', 'entries'),
    el('span', { class: reachable === false ? 'warn' : null }, isSelf ? '-' : reach[reachable]),
  ];
  return el('section', { class: 'panel', 'aria-labelledby': 'h-members' }, el('h2', { id: 'h-members' }, 'Cluster'),
    el('p', null, leadership(members)),
    table('Members of the cluster', ['Member', 'Address', 'Role', 'Lag', 'Reachable'], members.map(row), { class: 'cards' }));
}
