"""Texts that open_clip cleans before it encodes them, with the ids that come out.

    python tools/odd_texts.py COUNT SEED OUT

Writes about COUNT lines `["text", [id, ...]]`. `crates/nn/tests/data/odd_texts.jsonl`, which a test of `nn` compares
with, is `500 1`; to compare more, write a larger set over it (`100000 2`) and run the test. The texts are words of many
alphabets, entities, and escapes, read with wrong encodings up to three times over and damaged on the way.

Left out are texts whose cleaned form has characters that Unicode 14, the version of Python 3.11, does not know: the
libraries on either side cut words by later versions, and not by the same.
"""
import json
import random
import sys
import unicodedata

import open_clip

# The encodings that ftfy knows; importing open_clip has registered those called sloppy.
WINDOWS = ["1252", "1251", "1250", "1253", "1254", "1257"]
PAGES = ["latin-1", *(f"sloppy-windows-{number}" for number in WINDOWS), "iso-8859-2", "macroman", "cp437"]
WORDS = """
a photo of two wine glasses with "Spring Collection 2024" on it café naïve smörgåsbord Ünïcödé Привет мир ελληνικά
ΣΊΣΥΦΟΣ 日本語 テスト 한국어 العربية שלום हिन्दी ไทย Tiếng Việt — – … “quoted” ‘single’ it’s €5 £3 © ® ™ ½ 😀 🐈 ❤️ 👨‍👩‍👧
Łódź Škoda żółć São Paulo às à la mode àquele İstanbul straße ﬁne Ĳ ŉ ǆ ＡＢＣ ﾀﾞ ｱ ¡Hola! ¿Qué? «guillemets» № ´ ¨ ·
± × ÷ ² ³ µ ø Æ œuvre Œ ÿ đ ð þ Þ ğ ı ¤ ¦ ╔═╗ ░▒▓ │ ─ (°ロ°) (╯°□°)╯ ಠ_ಠ 𝓗 ẞ ﬆ ſ 'ſ ʼn Å Ω é ̈ ͅ ﾡ ￡ ￦ ŵ ć č ő ű 🇩🇪
&amp; &eacute; &EACUTE; &#233; &#x80; &#150; &lt; <b> &copy &notit; &nosuch; &NTILDE; &SZLIG; &#1; &#xD800; &#x110000;
&AMP;amp; &amp;lt; &CounterClockwiseContourIntegral; &gtcc; &GTCC; &#59; <start_of_text> !<end_of_text> <|endoftext|>
""".split()
SIGNS = ["\u3000", "\u2028", "\x85", "\r\n", "\n", "\x00", "\x1a", "\x1b[31m", "\ufeff", "\u200b", "\xad", "\xa0", "\ufffd"]
SOUP = [c for page in PAGES for c in bytes(range(0x80, 0x100)).decode(page)]
SOUP += [*"abzAZ 019.,?!&;#<>\n\r\t", "amp;", "&#", "&#x", "&lt", "<start_of_text>", "ƒƒ"]
RANGES = [(0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x4FF), (0x600, 0x6FF), (0x900, 0x97F), (0x2010, 0x2122), (0x3040, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF01, 0xFFEF), (0x1F300, 0x1F64F)]


def encoded(text, draw):
    """UTF-8, now and then with surrogate pairs as two sequences, Java's null character, or a torn sequence."""
    out = b""
    for c in text:
        if ord(c) > 0xFFFF and draw.random() < 0.5:
            pair = c.encode("utf-16-be")
            halves = (chr(int.from_bytes(pair[i:i + 2], "big")) for i in (0, 2))
            out += b"".join(half.encode("utf-8", "surrogatepass") for half in halves)
        else:
            out += {0: b"\xc0\x80", 1: b"\xa0"}.get(draw.randrange(200), c.encode())
    if out and draw.random() < 0.15:
        at = draw.randrange(len(out))
        out = out[:at] + draw.choice([b"", b"?", b"\x1a", b" ", b"\n", b"\xc0", bytes([draw.randrange(256)])]) + out[at + 1:]
    return out


def misread(text, draw):
    text = encoded(text, draw).decode(draw.choice(PAGES))
    if draw.random() < 0.2:
        text = text.replace("\xa0", " ")
    if draw.random() < 0.15:
        text = "".join("\ufffd" if "\x80" <= c <= "\x9f" else c for c in text)
    return text


def words(draw):
    parts = [draw.choice(WORDS) for _ in range(draw.randint(1, 6))]
    if draw.random() < 0.3:
        parts.insert(draw.randint(0, len(parts)), draw.choice(SIGNS))
    return draw.choice([" ", " ", ""]).join(parts)


def soup(draw):
    return "".join(draw.choice(SOUP) for _ in range(draw.randint(1, 16)))


def characters(draw):
    return "".join(chr(draw.randint(*draw.choice(RANGES))) for _ in range(draw.randint(1, 10)))


def texts(count, draw):
    for index in range(count):
        text = (words, soup, characters)[index % 3](draw)
        for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3])):
            text = misread(text, draw)
        if draw.random() < 0.2:
            text = words(draw) + draw.choice([" ", "", "\n"]) + text
        yield text + draw.choice([""] * 9 + ["À\n"])


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    count, seed, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    tokenizer = open_clip.tokenizer.SimpleTokenizer()
    with open(path, "w", encoding="ascii", newline="\n") as out:
        for text in dict.fromkeys(texts(count, random.Random(seed))):
            if any(unicodedata.category(c) == "Cn" for c in tokenizer.clean_fn(text)):
                continue
            ids = [tokenizer.sot_token_id, *tokenizer.encode(text), tokenizer.eot_token_id]
            out.write(json.dumps([text, ids], separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
