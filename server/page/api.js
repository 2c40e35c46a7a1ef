// Requests other than the stream.

const ANSWER_MOST = 10_000;

/** A refusal or a failure of a request, with what to do about it. */
export class Problem extends Error {
  constructor({ detail, what_to_do: whatToDo }, status) {
    super(detail ?? `The request failed with status ${status}.`);
    this.whatToDo = whatToDo ?? null;
    this.status = status;
  }
}

async function answer(path, options) {
  const response = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MOST), ...options }).catch(() => {
    throw new Problem({ detail: 'The request got no answer.', what_to_do: 'Check that the server of this page runs and can be reached.' }, null);
  });
  if (response.ok) return response.status === 204 ? null : response.json();
  throw new Problem(await response.json().catch(() => ({})), response.status);
}

const post = (path, body) => answer(path, {
  method: 'POST',
  headers: { 'Content-Type': 'application/json', 'X-Palisade-Page': '1' },
  body: JSON.stringify(body),
});

export const me = () => answer('/page/me');
export const lockDetails = (name) => answer(`/page/lock?name=${encodeURIComponent(name)}`);
export const login = (user, secret) => post('/page/login', { user, secret });
export const logout = () => post('/page/logout', {});
export const breakLock = (order) => post('/page/break', order);
