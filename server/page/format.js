// Text for people: times, counts, and foreign text made safe to read.

/** Shown for an unknown time or a missing token, as in `palisade ls`. */
export const NOTHING = '-';

const two = (number) => String(number).padStart(2, '0');

/** Formats milliseconds as the CLI does, with two units at most: `1h 12m`, `3.4s`, `120ms`. */
export function time(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  const positive = Math.max(0, ms);
  const seconds = Math.floor(positive / 1000);
  if (seconds < 1) return `${Math.floor(positive)}ms`;
  if (seconds < 10) return `${(Math.floor(positive / 100) / 10).toFixed(1)}s`;
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h ${two(Math.floor(seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86_400)}d ${two(Math.floor(seconds / 3600) % 24)}h`;
}

/** Formats a time that runs. Below one second it shows tenths: milliseconds would flicker. */
export function runningTime(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  return ms < 1000 ? `${(Math.floor(Math.max(0, ms) / 100) / 10).toFixed(1)}s` : time(ms);
}

/** Formats a measured latency: `0.42ms`, `3.1ms`, `120ms`, `1.2s`. */
export function latency(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  if (ms < 1) return `${ms.toFixed(2)}ms`;
  if (ms < 10) return `${ms.toFixed(1)}ms`;
  return time(ms);
}

/** Formats a wall-clock time of day for an age in milliseconds. */
export function timeOfDay(age) {
  const at = new Date(Date.now() - age);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

const grouped = new Intl.NumberFormat('en');

/** Formats a number with separators. */
export const number = (value) => grouped.format(value);

/** Returns a number with its noun, in the plural unless it is one. */
export const count = (value, one, several) => `${number(value)} ${value === 1 ? one : several}`;

/** Says how many sessions wait. */
export const waiting = (value) => (value === 0 ? 'No session waits' : value === 1 ? '1 waits' : `${number(value)} wait`);

// Control and format characters (bidi overrides, zero-width marks, tags), lone surrogates, unusual spaces, fillers
// that render as nothing, and piles of combining marks that would cover the lines around them.
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u2800\ufe00-\ufe0f\u{e0100}-\u{e01ef}]|(?! )\p{Zs}|^\p{M}|\p{M}{3,}/gu;
const SHORT = new Map([['\n', '\\n'], ['\r', '\\r'], ['\t', '\\t'], ['\0', '\\0']]);

const escapeOne = (char) => SHORT.get(char) ?? `\\u{${char.codePointAt(0).toString(16)}}`;
const escapeAll = (chars) => Array.from(chars, escapeOne).join('');

/** Escapes foreign text as the CLI does: no control characters, no direction marks, no line breaks. */
export const shown = (text) => text.replaceAll('\\', '\\\\').replace(HIDDEN, escapeAll);

/** Cuts text after `most` characters. */
export function cut(text, most) {
  if (text.length <= most) return text;
  // A surrogate pair stays whole.
  const end = /[\ud800-\udbff]/.test(text[most - 1]) ? most - 1 : most;
  return `${text.slice(0, end)}…`;
}

/** Escapes and cuts foreign text for a list. */
export const brief = (text, most = 160) => cut(shown(cut(text, most)), most);

/** Makes a sentence of a message: it begins with a capital letter, unless with a name, and ends with a full stop. */
export function asSentence(text) {
  const trimmed = text.trim();
  const begun = /^[a-z]+[ ,]/.test(trimmed) ? trimmed[0].toUpperCase() + trimmed.slice(1) : trimmed;
  return begun === '' || /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}

/** Says what a `Problem` is and what to do about it, in sentences. */
export const problemText = ({ message, whatToDo }) => [message, whatToDo ?? ''].map((text) => asSentence(brief(text, 300))).filter(Boolean).join(' ');

const octal = (byte) => `\\${byte.toString(8).padStart(3, '0')}`;
const utf8 = new TextEncoder();

/**
 * Quotes a word for a shell, if it needs quotes. Hidden characters become escapes, so that a pasted command
 * does what it shows.
 */
export function shellWord(text) {
  if (/^[A-Za-z0-9/._:@%+=,][A-Za-z0-9/._:@%+=,-]*$/.test(text)) return text;
  if (text.search(HIDDEN) < 0) return `'${text.replaceAll("'", "'\\''")}'`;
  const quoted = text.replace(/[\\']/g, '\\$&');
  return `$'${quoted.replace(HIDDEN, (chars) => Array.from(utf8.encode(chars), octal).join(''))}'`;
}
