//! Text that was UTF-8 and was decoded with a single-byte encoding, perhaps more than once: `ftfy.fix_encoding`.
//!
//! The rules are those of ftfy 6.3.1, Copyright 2023 Robyn Speer, Apache License 2.0, written anew.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::code_pages::{CODE_PAGES, CodePage, Family, SUBSTITUTE, from_windows_1252};
use super::fix_text::Effort;
use super::suspicion::is_suspicious;

/// The byte of a no-break space, which many programs turn into a plain one.
const NO_BREAK_SPACE: u8 = 0xa0;

/// Repairs the encoding until nothing changes, or `effort` is spent.
pub(super) fn fix_encoding(text: &str, effort: &mut Effort) -> String {
    let mut text = text.to_owned();
    while let Some(fixed) = fix_once(&text, effort) {
        text = fixed;
        if !effort.spend(text.len()) {
            break;
        }
    }
    text
}

/// One repair; `None` if there is nothing to repair.
fn fix_once(text: &str, effort: &mut Effort) -> Option<String> {
    if text.is_ascii() || !is_suspicious(text) {
        return None;
    }
    let changed = |fixed: String| (fixed != text).then_some(fixed);
    let whole = CODE_PAGES.iter().find_map(|page| decode(page, page.encode(text)?));
    if let Some(fixed) = whole {
        return changed(fixed);
    }
    // Control characters of Latin-1 were meant as windows-1252.
    changed(fix_embedded(text, effort)).or_else(|| changed(text.chars().map(from_windows_1252).collect()))
}

/// The text that `bytes` are in UTF-8, when a code page has been through them; `None` if they are not.
fn decode(page: &CodePage, mut bytes: Vec<u8>) -> Option<String> {
    // In Mac OS Roman an en dash before a space looks like the start of a sequence.
    if page.family != Family::MacRoman {
        bytes = replace(&bytes, no_break_space);
    }
    if page.family == Family::Windows {
        bytes = replace(&bytes, |rest, out| {
            let length = lossy_sequence(rest)?;
            out.extend("\u{fffd}".as_bytes());
            Some(length)
        });
    }
    from_utf8_variants(&bytes)
}

/// Copies bytes, except where `find` reads some: it writes what stands for them and returns how many they are.
fn replace(bytes: &[u8], find: impl Fn(&[u8], &mut Vec<u8>) -> Option<usize>) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = match find(rest, &mut out) {
            Some(length) => &rest[length..],
            None => {
                out.push(*first);
                after
            }
        };
    }
    out
}

/// A sequence with a space where a no-break space must have been. Some first bytes are left out, because the character
/// would be a rare one.
fn no_break_space(bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let is_later = |byte: u8| matches!(byte, 0x80..=0x84 | 0x86..=0x9f | 0xa1..=0xbf);
    let length = match bytes {
        [0xc3, b' ', after @ ..] if !continues_a_grave(after) => {
            // `à` is mostly a word of its own, whose space was joined to the no-break space.
            out.extend([0xc3, NO_BREAK_SPACE, b' ']);
            return Some(2);
        }
        [0xc2 | 0xc3 | 0xc5 | 0xce | 0xd0 | 0xd9, b' ', ..] => 2,
        [0xe2 | 0xe3, b' ', byte, ..] | [0xe0..=0xe3, byte, b' ', ..] if is_later(*byte) => 3,
        [0xf0, b' ', 0x80..=0xbf, 0x80..=0xbf, ..]
        | [0xf0, 0x80..=0xbf, b' ', 0x80..=0xbf, ..]
        | [0xf0, 0x80..=0xbf, 0x80..=0xbf, b' ', ..] => 4,
        _ => return None,
    };
    out.extend(bytes[..length].iter().map(|byte| match byte {
        b' ' => NO_BREAK_SPACE,
        other => *other,
    }));
    Some(length)
}

/// Whether what follows `à` and a space belongs to it: another space, or the rest of `àquele` and the like or `às`.
fn continues_a_grave(bytes: &[u8]) -> bool {
    let endings: [&[u8]; 5] = [b" ", b"quele", b"quela", b"quilo", b"s "];
    endings.iter().any(|ending| bytes.starts_with(ending))
}

/// The length of a sequence of which bytes were lost, so that no character can be read from it any more.
fn lossy_sequence(bytes: &[u8]) -> Option<usize> {
    const LOST: u8 = SUBSTITUTE;
    Some(match bytes {
        [0xc2..=0xdf, LOST, ..] | [0xc2 | 0xc3, b'?', ..] => 2,
        [
            0xed,
            0xa0..=0xaf,
            LOST | b'?',
            0xed,
            0xb0..=0xbf,
            LOST | b'?' | 0x80..=0xbf,
            ..,
        ]
        | [0xed, 0xa0..=0xaf, 0x80..=0xbf, 0xed, 0xb0..=0xbf, LOST | b'?', ..] => 6,
        [0xe0..=0xef, LOST | b'?', LOST | 0x80..=0xbf, ..] | [0xe0..=0xef, LOST | 0x80..=0xbf, LOST | b'?', ..] => 3,
        [0xf0..=0xf4, LOST | b'?', LOST | 0x80..=0xbf, LOST | 0x80..=0xbf, ..]
        | [0xf0..=0xf4, LOST | 0x80..=0xbf, LOST | b'?', LOST | 0x80..=0xbf, ..]
        | [0xf0..=0xf4, LOST | 0x80..=0xbf, LOST | 0x80..=0xbf, LOST | b'?', ..] => 4,
        [LOST, ..] => 1,
        _ => return None,
    })
}

/// UTF-8, with two forms besides that other programs write: surrogate pairs as two sequences of three bytes (CESU-8)
/// and the null character as `c0 80` (Java). As in ftfy, a line break that ends the text passes for the last byte of
/// either.
fn from_utf8_variants(bytes: &[u8]) -> Option<String> {
    let proper = replace(bytes, |rest, out| match *rest {
        [0xc0, 0x80, ..] | [0xc0, b'\n'] => {
            out.push(0);
            Some(2)
        }
        [
            0xed,
            high @ 0xa0..=0xaf,
            b @ 0x80..=0xbf,
            0xed,
            low @ 0xb0..=0xbf,
            d,
            ref after @ ..,
        ] if matches!(d, 0x80..=0xbf) || (d == b'\n' && after.is_empty()) => {
            let [high, b, low, d] = [high & 0xf, b & 0x3f, low & 0xf, d & 0x3f].map(u32::from);
            let character = char::from_u32(0x10000 + (high << 16 | b << 10 | low << 6 | d))?;
            out.extend(character.encode_utf8(&mut [0; 4]).bytes());
            Some(6)
        }
        _ => None,
    });
    String::from_utf8(proper).ok()
}

/// Repairs each run of characters that look like UTF-8 sequences on its own, where the whole has no one explanation.
fn fix_embedded(text: &str, effort: &mut Effort) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        // Behind a further part of a sequence the start of this one is missing, and a repair would hide that.
        let is_torn = at > 0 && trace(characters[at - 1]).stands_for_a_later_byte;
        let length = if is_torn { 0 } else { sequences(&characters[at..]) };
        if length == 0 {
            out.push(characters[at]);
            at += 1;
            continue;
        }
        let run: String = characters[at..at + length].iter().collect();
        // A run that is the whole text is not tried again, or this would not end.
        let repaired = if length < characters.len() && is_suspicious(&run) {
            fix_encoding(&run, effort)
        } else {
            run
        };
        out.push_str(&repaired);
        at += length;
    }
    out
}

/// How many of the first characters look like whole UTF-8 sequences.
fn sequences(characters: &[char]) -> usize {
    let mut end = 0;
    while let Some(first) = characters.get(end) {
        let length = trace(*first).sequence;
        let Some(later) = characters.get(end + 1..end + length.max(1)) else {
            break;
        };
        if length == 0 || !later.iter().all(|character| trace(*character).may_be_a_later_byte) {
            break;
        }
        end += length;
    }
    end
}

/// What a character may once have been, if UTF-8 was decoded with one of the encodings in which that happens most:
/// Latin-1 and the code pages of Windows.
#[derive(Debug, Clone, Copy, Default)]
struct Trace {
    /// The first byte of a sequence of that many bytes; 0 if of none.
    sequence: usize,
    /// A later byte of a sequence.
    may_be_a_later_byte: bool,
    /// A later byte, and hardly ever itself next to mojibake.
    stands_for_a_later_byte: bool,
}

fn trace(character: char) -> Trace {
    static TRACES: LazyLock<BTreeMap<char, Trace>> = LazyLock::new(traces);
    TRACES.get(&character).copied().unwrap_or_default()
}

fn traces() -> BTreeMap<char, Trace> {
    let mut traces = BTreeMap::<char, Trace>::new();
    let pages = CODE_PAGES.iter();
    for page in pages.filter(|page| matches!(page.family, Family::Latin1 | Family::Windows)) {
        for (character, byte) in page.upper.into_iter().zip(0x80_u8..) {
            let trace = traces.entry(character).or_default();
            match byte {
                0x80..=0xbf => {
                    trace.may_be_a_later_byte = true;
                    trace.stands_for_a_later_byte = !"–—―‘’‚“”„•…".contains(character);
                }
                0xc2..=0xdf => trace.sequence = 2,
                0xe0..=0xef => trace.sequence = 3,
                // Other first bytes of four belong to planes without characters.
                0xf0 | 0xf3 => trace.sequence = 4,
                _ => {}
            }
        }
    }
    // A no-break space that has become a plain one.
    traces.entry(' ').or_default().may_be_a_later_byte = true;
    traces
}
