// Links to views. Each view has an address after the `#`.

/** Returns the address of a lock's view. */
export const lockAddress = (name) => `#/lock/${encodeURIComponent(name)}`;

/** Returns the address of a view with parameters; empty ones are left out. */
export function address(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== '' && value !== null);
  const query = new URLSearchParams(given).toString();
  return `#/${view}${query ? `?${query}` : ''}`;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // Typed by hand, with a lone %.
  }
}

/** Reads an address: the view, the name of the lock, and the parameters. */
export function parseAddress(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?');
  const slash = path.indexOf('/');
  const view = slash < 0 ? path : path.slice(0, slash);
  const name = slash < 0 ? '' : decoded(path.slice(slash + 1));
  return {
    // An address that was typed may say `locks`.
    view: view === 'locks' && name !== '' ? 'lock' : view || 'locks',
    name,
    parameters: new URLSearchParams(query),
  };
}
