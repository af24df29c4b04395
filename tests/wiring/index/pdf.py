"""Small PDFs, written by hand."""


def pdf(text: str, before: str = "", pages: int = 1) -> bytes:
    """``text``: what stands in the page's text object, in 24 point Helvetica from the top left; ``before`` is drawn first."""
    content = f"{before} BT /F1 24 Tf 72 700 Td {text} ET".encode()
    kids = " ".join(f"{i + 5} 0 R" for i in range(pages))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
    ]
    objects += [
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 3 0 R >> >> >>"
    ] * pages
    return assembled(objects)


def assembled(objects: list[bytes]) -> bytes:
    """A file of these objects, numbered from 1; the first is its catalog."""
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, start)
    return bytes(out)
