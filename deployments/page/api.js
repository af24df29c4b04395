// The HTTP interface: the key, and the one shape of errors.

import { ApiError, Unreachable, aborted } from './errors.js';

const KEY = 'assay.key';
const UNKNOWN = { code: 'unexpected', message: 'The server answered with something that is not of its interface.' };

let askForKey = async () => false;

/** `ask(fault)` resolves to whether a key was given; it is called when the server wants one. */
export function whenKeyIsWanted(ask) {
  askForKey = ask;
}

// For this tab alone. In localStorage it would lie on the disk, and a cookie would go along with requests of other sites.
export const key = () => sessionStorage.getItem(KEY);
export const setKey = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));

const authorized = () => (key() ? { authorization: `Bearer ${key()}` } : {});

/** A name that nobody else takes. `crypto.randomUUID` is only there behind TLS. */
export const unique = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');

export async function request(path, { method = 'GET', json, headers = {}, signal } = {}) {
  const body = json === undefined ? undefined : JSON.stringify(json);
  const typed = body === undefined ? {} : { 'content-type': 'application/json' };
  for (;;) {
    let reply;
    try {
      reply = await fetch(path, { method, body, signal, headers: { ...typed, ...headers, ...authorized() } });
    } catch (fault) {
      throw aborted(fault) ? fault : new Unreachable('The server cannot be reached.');
    }
    if (reply.ok) return reply;
    const fault = await faultOf(reply);
    if (fault.status !== 401 || !(await askForKey(fault))) throw fault;
  }
}

async function faultOf(reply) {
  const body = parsed(await reply.text());
  return new ApiError(body?.error ?? UNKNOWN, reply.status, reply.headers.get('retry-after'));
}

export async function get(path) {
  return (await request(path)).json();
}

export async function post(path, json) {
  return (await request(path, { method: 'POST', json })).json();
}

export async function patch(path, json) {
  return (await request(path, { method: 'PATCH', json })).json();
}

export async function remove(path) {
  await request(path, { method: 'DELETE' });
}

/** Posts files; `progress(share)` is told how much of them has been sent, which `fetch` cannot say. */
export async function upload(path, form, progress) {
  for (;;) {
    const { status, text, retryAfter } = await sent(path, form, progress);
    const body = parsed(text);
    if (status >= 200 && status < 300) return body;
    const fault = new ApiError(body?.error ?? UNKNOWN, status, retryAfter);
    if (status !== 401 || !(await askForKey(fault))) throw fault;
  }
}

function sent(path, form, progress) {
  return new Promise((resolve, reject) => {
    const line = new XMLHttpRequest();
    line.open('POST', path);
    for (const [name, value] of Object.entries(authorized())) line.setRequestHeader(name, value);
    line.upload.onprogress = ({ loaded, total }) => progress(total ? loaded / total : 0);
    line.onload = () => resolve({ status: line.status, text: line.responseText, retryAfter: line.getResponseHeader('retry-after') });
    line.onerror = () => reject(new Unreachable('The connection was lost while the files were sent.'));
    line.send(form);
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
