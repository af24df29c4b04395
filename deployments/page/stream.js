// Streams of events that outlive their connection: taken up again after the last event that was seen.

import { remove, request } from './api.js';
import { ApiError, Unreachable } from './errors.js';
import { decoded } from './sse.js';

const GIVE_UP_MS = 5 * 60_000; // so long the server keeps a stream for whoever comes back
const LONGEST_PAUSE_MS = 8_000;
const LAST = ['completed', 'error'];

/** Puts a question and yields the events of its answer. `name` is its idempotency key: sent twice, it is asked once.
 *
 * `line` has the `signal` that ends it, for good; `says(text)`, told what is wrong with the connection, and "" when that is over;
 * and `known(path)`, told where the stream can be taken up. */
export async function* asked(path, body, name, line) {
  const first = () => request(path, {
    method: 'POST', json: { ...body, stream: true, resumable: true }, headers: { 'idempotency-key': name }, signal: line.signal,
  });
  yield* followed(first, null, line);
}

/** Yields the events of a stream that is there already, from its first one on; `line` as above. */
export async function* takenUp(path, line) {
  yield* followed(null, path, line);
}

async function* followed(first, path, line) {
  let last = 0;
  let failures = 0;
  let since = 0;
  line.signal?.addEventListener('abort', () => path && remove(path).catch(() => {}), { once: true });
  for (;;) {
    try {
      const reply = path ? await again(path, last, line.signal) : await first();
      if (!path) line.known?.((path = `v1/streams/${reply.headers.get('x-stream-id')}`));
      if (reply.status === 204) return; // there is nothing after what was seen
      line.says?.('');
      for await (const event of decoded(reply.body)) {
        failures = 0;
        last = Number(event.id);
        yield event;
        if (LAST.includes(event.type)) return;
      }
    } catch (fault) {
      if (!(fault instanceof Unreachable) && !(path && notNow(fault)) && !stillAnswering(fault, failures)) throw fault;
    }
    since = failures ? since : Date.now();
    if (Date.now() - since > GIVE_UP_MS) throw new Unreachable('The connection was lost, and did not come back.');
    line.says?.('Connection lost. Trying again');
    await pause(Math.min(LONGEST_PAUSE_MS, 300 * 2 ** failures), line.signal);
    failures += 1;
  }
}

const again = (path, last, signal) => request(path, { headers: { 'last-event-id': String(last) }, signal });

/** A stream that is there cannot be taken up just now: a stage restarts, or the server's door. */
const notNow = (fault) => fault instanceof ApiError && (fault.status === 429 || fault.status >= 500);

/** The question has arrived, though its reply has not: under the same name it waits for the same answer. */
const stillAnswering = (fault, failures) => failures > 0 && fault instanceof ApiError && fault.status === 409;

/** Ends early when the machine is online again. */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const end = (settle, value) => {
      clearTimeout(timer);
      removeEventListener('online', wake);
      signal?.removeEventListener('abort', stop);
      settle(value);
    };
    const wake = () => end(resolve);
    const stop = () => end(reject, signal.reason);
    const timer = setTimeout(wake, ms);
    addEventListener('online', wake);
    signal?.addEventListener('abort', stop);
    if (signal?.aborted) stop();
  });
}
