// A fault as people can read it: what is wrong, its code, the field to blame and what that may be.

import { h, icon, say } from './dom.js';

export class ApiError extends Error {
  constructor(body, status = 0, retryAfter = null) {
    super(body.message);
    Object.assign(this, { code: body.code, field: body.field ?? null, allowed: body.allowed ?? [] });
    Object.assign(this, { requestId: body.request_id ?? null, status, retryAfter });
  }
}

/** The server could not be reached, or the line broke. */
export class Unreachable extends Error {}

export const aborted = (fault) => fault?.name === 'AbortError';

export function errorBox(fault, again = null, label = 'Try again') {
  const rows = fault instanceof ApiError ? facts(fault) : [];
  const message = fault.message || 'Something went wrong in this page.';
  say(`Error: ${message}`);
  return h('div', { class: 'fault', role: 'group', 'aria-label': 'Error' },
    h('p', { class: 'fault-says' }, icon('warn'), h('span', { dir: 'auto' }, message)),
    rows.length > 0 && h('dl', {}, rows),
    again && h('button', { type: 'button', class: 'quiet', click: again }, label));
}

function facts(fault) {
  const wait = fault.retryAfter && `in ${fault.retryAfter} s`;
  const told = [['Code', fault.code], ['Field', fault.field], ['Try again', wait], ['Request', fault.requestId]];
  const rows = told.filter(([, value]) => value).map(([name, value]) => row(name, h('code', {}, value)));
  if (fault.allowed.length) rows.splice(2, 0, row('Allowed', fault.allowed.map((value) => h('code', {}, value))));
  return rows;
}

const row = (name, value) => h('div', {}, h('dt', {}, name), h('dd', {}, value));
