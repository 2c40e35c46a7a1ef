// One sentence about a lock: who holds it, since when, and who is next.

import { el, foreign } from './dom.js';
import { number, runningTime, waiting } from './format.js';
import { holderName, isPeriod, kindOf, permitsTaken, sessionName, timeLeft, tokenText } from './rows.js';

const bold = (text) => el('strong', null, foreign(text, 80));

/** Returns ` for 12m 03s (token 33)`. Not every engine knows the time. */
function heldFor({ since, token }, { store, live }) {
  const grant = token === null ? '' : ` (token ${tokenText(token)})`;
  if (since === null) return [grant];
  return [' for ', live.text(() => runningTime(store.now() - since)), grant];
}

function withheld(row, holder, context) {
  const { store, live } = context;
  const rest = holder.until === null ? [] : [' for another ', live.text(() => runningTime(holder.until - store.now()))];
  return [bold(row.name), ` is withheld after an expiry${holder.token === null ? '' : ` (token ${holder.token})`}`, ...rest, '.'];
}

function period(row, holder, { store, live }) {
  const rest = holder.until === null ? [] : [' It ends in ', live.text(() => runningTime(Math.max(0, holder.until - store.now()))), '.'];
  return [bold(row.name), ' is a period of palisade run --every, begun by ', bold(holderName(holder)), '.', ...rest];
}

function severalHold(row, oldest, context) {
  const others = row.holder_count === 1 ? '1 session' : `${number(row.holder_count)} sessions`;
  const [before, after] = oldest.since === null ? ['the oldest is ', ''] : ['', row.holder_count === 1 ? ' has held it' : ' has held it longest,'];
  const first = [before, bold(holderName(oldest)), after, ...heldFor(oldest, context), '.'];
  if (row.limit === null) return [bold(row.name), ` is shared by ${others}; `, ...first];
  return [bold(row.name), ` has ${permitsTaken(row)} of ${number(row.limit)} permits taken by ${others}; `, ...first];
}

function held(row, context) {
  const [oldest] = row.holders;
  if (!oldest) return [bold(row.name), ' is not held.'];
  if (oldest.session === null) return withheld(row, oldest, context);
  if (isPeriod(row.name)) return period(row, oldest, context);
  if (row.limit !== null || oldest.mode === 'shared') return severalHold(row, oldest, context);
  const election = kindOf(row) === 'election';
  const verb = oldest.since === null ? (election ? ' leads ' : ' holds ') : (election ? ' has led ' : ' has held ');
  return [bold(holderName(oldest)), verb, bold(row.name), ...heldFor(oldest, context), '.'];
}

function queue(row) {
  const [next] = row.waiters;
  if (!next) return [' No session waits.'];
  return [` ${waiting(row.waiter_count)}; next is `, bold(sessionName(next)), '.'];
}

/** Returns the sentence as nodes; the times in it run with `live`. */
export function sentence(name, row, context) {
  if (!row) return [bold(name), ' is not in use: no holder, no waiters.'];
  return [...held(row, context), ...queue(row)];
}

/** Returns a warning if the oldest holder's session is in jeopardy, or the empty text. */
export function warning(row, now) {
  const oldest = row?.holders[0];
  if (!oldest || oldest.session === null) return '';
  const { left, jeopardy } = timeLeft(oldest, now, !isPeriod(row.name));
  return jeopardy ? `Its session is in jeopardy: without a keep-alive it ends in ${runningTime(left)}.` : '';
}
