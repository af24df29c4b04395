"""E-mail, as internet message or as Outlook's: what the header says, the body, and the attachments as the files they are."""

import email
import email.policy
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage, Message
from email.utils import parsedate_to_datetime
from typing import Any

from assay.errors import ParseFault
from assay.index.parse import html, md
from assay.index.parse.decode import decode
from assay.index.parse.out import Writer, told
from assay.index.parse.parsed import Format, Parsed, Raw

Inner = Callable[[bytes, str], Parsed]  # reads an attachment by its name; raises ``ParseFault``

_MOST_PARTS = 1_000
_HEADERS = ("From", "To", "Cc", "Date", "Subject")


@dataclass(frozen=True, slots=True)
class _Attachment:
    name: str
    data: bytes | None  # None where it could not be taken out


def parse_eml(data: bytes, stem: str, inner: Inner) -> Parsed:
    try:
        message = email.message_from_bytes(data, policy=email.policy.compat32)
    except RecursionError:
        raise ParseFault("the mail is nested too deeply", "too_large") from None
    headers = {name: _header(message, name) for name in _HEADERS}
    if not any(headers.values()):
        raise ParseFault("the file is no mail: it has no header", "malformed")
    bodies: dict[str, list[str]] = {"plain": [], "html": []}
    attachments: list[_Attachment] = []
    for part in _parts(message):
        kind, name = part.get_content_type(), _filename(part)
        if kind == "message/rfc822":
            held = part.get_payload()
            first = held[0] if isinstance(held, list) and held else None
            raw = first.as_bytes() if isinstance(first, Message) else None
            attachments.append(_Attachment(name if name.lower().endswith(".eml") else f"{name or 'message'}.eml", raw))
        elif kind in ("text/plain", "text/html") and not name and part.get_content_disposition() != "attachment":
            bodies[kind[5:]].append(_text(part))
        elif part.get_content_maintype() != "multipart":
            payload = part.get_payload(decode=True)
            raw = payload if isinstance(payload, bytes) else None
            if part.get_content_disposition() == "attachment" or (name and part.get_content_maintype() != "image"):
                attachments.append(_Attachment(name or "unnamed", raw))
    html, plain = ("\n".join(bodies[kind]) for kind in ("html", "plain"))
    return _letter(headers, html, plain, attachments, stem, "eml", inner)


def parse_msg(data: bytes, stem: str, inner: Inner) -> Parsed:
    from oxmsg import Message as Outlook

    try:
        message = Outlook.load(io.BytesIO(data))
        given = {k.title(): _decoded(k, str(v)) for k, v in (message.message_headers or {}).items()}
        sent = message.sent_date
        headers = {name: given.get(name, "") for name in _HEADERS}
        headers["From"] = headers["From"] or message.sender or ""
        headers["To"] = headers["To"] or ", ".join(_recipient(r) for r in message.recipients)
        headers["Date"] = headers["Date"] or (sent.isoformat() if sent else "")
        headers["Subject"] = message.subject or headers["Subject"]
        attachments = [_Attachment(a.file_name or "unnamed", a.file_bytes) for a in message.attachments]
        html, plain = message.html_body or "", message.body or ""
    except (OSError, KeyError, ValueError, TypeError, AttributeError, IndexError, AssertionError) as e:
        raise ParseFault(f"the file is no readable Outlook message ({type(e).__name__})", "malformed") from None
    return _letter(headers, html, plain, attachments, stem, "msg", inner)


def _recipient(person: Any) -> str:
    name, address = person.name or "", person.email_address or ""
    return f"{name} <{address}>" if name and address and name != address else name or address


def _letter(
    headers: dict[str, str],
    page: str,
    plain: str,
    attachments: list[_Attachment],
    stem: str,
    format: Format,
    inner: Inner,
) -> Parsed:
    out = Writer()
    headers = {name: " ".join(value.replace("\x00", "").split()) for name, value in headers.items()}
    out.block("text", "\n".join(f"{name}: {value}" for name, value in headers.items() if value))
    body = _body(page, html.parse) or _body(plain, md.parse_plain)
    if body is not None:
        out.splice(body)
    for attachment in attachments:
        _attach(attachment, out, inner)
    subject = headers["Subject"]
    people: dict[str, Raw] = {"from": headers["From"], "to": headers["To"], "date": _instant(headers["Date"])}
    properties = told(title=subject, subject=subject, author=headers["From"], created=people["date"], **people)
    return out.parsed(subject or stem, format, properties, "the mail has no text")


def _body(text: str, read: Callable[[str, str], Parsed]) -> Parsed | None:
    try:
        return read(text.replace("\x00", ""), "")
    except ParseFault:
        return None


def _attach(attachment: _Attachment, out: Writer, inner: Inner) -> None:
    """Under its name, its headings below that. One that cannot be read is named, in the text and in the report."""
    name = " ".join(attachment.name.split())[:200]
    out.heading(f"Attachment: {name}", 1)
    try:
        if attachment.data is None:
            raise ParseFault("it cannot be taken out of the mail")
        out.splice(inner(attachment.data, name), below=1)
    except ParseFault as fault:
        out.notes.append(f"the attachment '{name}' was left out: {fault.reason}: {fault.message}")


def _parts(message: Message) -> Iterator[Message]:
    """The parts of one message, in order, but not those of messages attached to it."""
    stack, count = [message], 0
    while stack:
        part = stack.pop()
        count += 1
        if count > _MOST_PARTS:
            raise ParseFault(f"the mail has more than {_MOST_PARTS} parts", "too_large")
        yield part
        held = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(held, list):
            stack += [inner for inner in reversed(held) if isinstance(inner, Message)]


def _text(part: Message) -> str:
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    charset = part.get_param("charset")
    try:
        return decode(data, charset if isinstance(charset, str) else None)
    except ParseFault:
        return decode(data)


def _header(message: Message, name: str) -> str:
    raw = message.get(name)
    return "" if raw is None else _decoded(name, str(raw))


def _decoded(name: str, raw: str) -> str:
    """Encoded words as the text they are; a header that the parser cannot take is given as it stands."""
    try:
        return str(email.policy.default.header_factory(name, re.sub(r"[\r\n]+", " ", raw)))
    except (ValueError, IndexError, AttributeError, LookupError, TypeError):  # bugs of the header parser on odd input
        return raw


def _filename(part: Message) -> str:
    modern = EmailMessage(policy=email.policy.default)
    for name in ("Content-Type", "Content-Disposition"):
        if part.get(name) is not None:
            try:
                modern[name] = re.sub(r"[\r\n]+", " ", str(part[name]))
            except (ValueError, IndexError, AttributeError, LookupError, TypeError):
                pass
    return modern.get_filename() or part.get_filename() or ""


def _instant(said: str) -> str:
    try:
        return parsedate_to_datetime(said).isoformat()
    except (ValueError, TypeError, IndexError):
        pass
    try:
        return datetime.fromisoformat(said).isoformat()
    except ValueError:
        return ""
