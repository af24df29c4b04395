// Server-sent events out of a fetched body: EventSource can neither post a question nor send a key.

import { Unreachable, aborted } from './errors.js';

/** Yields `{id, type, data}`; `data` is the parsed JSON. Ends where the body ends; `Unreachable` where the line broke. */
export async function* decoded(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(broken);
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      // A frame ends with an empty line. Only \n ends a line here: U+2028 stands inside of texts.
      for (let end = rest.indexOf('\n\n'); end >= 0; end = rest.indexOf('\n\n')) {
        const event = parsed(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function broken(fault) {
  throw aborted(fault) ? fault : new Unreachable('The connection was lost.');
}

function parsed(frame) {
  const fields = {};
  for (const line of frame.split('\n')) {
    const colon = line.indexOf(':');
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, '');
  }
  return fields.data === undefined ? null : { id: fields.id, type: fields.event, data: JSON.parse(fields.data) };
}
