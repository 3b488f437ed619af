//! Character references of HTML, as two Python libraries replace them.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::code_pages::from_windows_1252;

/// Letters of the longest name that HTML has.
const LONGEST_NAME: usize = 31;
/// Letters of the longest name that HTML has without a semicolon too.
const LONGEST_BARE_NAME: usize = 6;
/// Most letters and digits that [`unescape_closed`] reads.
const LONGEST_CLOSED: usize = 24;

/// Replaces character references as `html.unescape` of Python 3.11 does: named ones with or without the semicolon,
/// where HTML allows that, and numbers. A number that stands for a control or no character at all is dropped, one from
/// 0x80 to 0x9f means windows-1252.
pub(super) fn unescape(text: &str) -> String {
    replace(text, |reference| {
        numeric(reference).or_else(|| {
            let (name, closed) = split_name(reference, LONGEST_NAME);
            let closed = closed.and_then(entity).map(|found| (found, name.len() + 1));
            let found = closed.or_else(|| {
                // No bare name starts another one, so there is at most one.
                let lengths = 1..=name.len().min(1 + LONGEST_BARE_NAME);
                lengths.into_iter().find_map(|end| Some((entity(&name[..end])?, end)))
            });
            found.map(|(found, used)| (found.to_owned(), used))
        })
    })
}

/// Replaces the character references that are beyond doubt, as `unescape_html` of ftfy 6.3 does: only those that end
/// in a semicolon. A name in capitals means the character in capitals, if HTML gives it no other meaning.
pub(super) fn unescape_closed(text: &str) -> String {
    replace(text, |reference| {
        let marks = usize::from(reference.starts_with("&#"));
        let (name, closed) = split_name(&reference[marks..], LONGEST_CLOSED);
        let used = marks + name.len() + 1;
        closed?;
        let reference = &reference[..used];
        let found = match numeric(reference) {
            Some((found, whole)) => (whole == used && found != ";").then_some(found),
            None => entity(reference).map(str::to_owned).or_else(|| in_capitals(reference)),
        };
        found.map(|found| (found, used))
    })
}

/// Replaces what `find` finds at an ampersand: the replacement, and how many bytes it stands for.
fn replace(text: &str, find: impl Fn(&str) -> Option<(String, usize)>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        let (before, reference) = rest.split_at(at);
        out.push_str(before);
        let (replacement, used) = find(reference).unwrap_or_else(|| ("&".to_owned(), 1));
        out.push_str(&replacement);
        rest = &reference[used..];
    }
    out + rest
}

/// A name of at most `longest` letters with its ampersand, and the same with the semicolon if there is one.
fn split_name(reference: &str, longest: usize) -> (&str, Option<&str>) {
    let letters = reference.bytes().skip(1).take_while(u8::is_ascii_alphanumeric);
    let end = 1 + letters.take(longest).count();
    let is_closed = end > 1 && reference[end..].starts_with(';');
    (&reference[..end], is_closed.then(|| &reference[..=end]))
}

/// The characters of a name with its ampersand, and with or without its semicolon.
fn entity(name: &str) -> Option<&'static str> {
    static ENTITIES: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        let all = entities::ENTITIES.iter();
        all.map(|entity| (entity.entity, entity.characters)).collect()
    });
    ENTITIES.get(name).copied()
}

fn in_capitals(reference: &str) -> Option<String> {
    let small = reference.to_ascii_lowercase();
    let stands_for_nothing = reference == reference.to_ascii_uppercase() && unescape(reference) == reference;
    let found = stands_for_nothing.then(|| entity(&small))?;
    found.map(str::to_uppercase)
}

/// The character of a number, and how many bytes it was written in.
fn numeric(reference: &str) -> Option<(String, usize)> {
    let digits = reference.strip_prefix("&#")?;
    let (digits, radix) = match digits.strip_prefix(['x', 'X']) {
        Some(digits) => (digits, 16),
        None => (digits, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    let closing = usize::from(digits[end..].starts_with(';'));
    let used = reference.len() - digits.len() + end + closing;
    // A number too large for 32 bits is as meaningless as one that is merely too large.
    let number = u32::from_str_radix(&digits[..end], radix).unwrap_or(u32::MAX);
    Some((character(number).map(String::from).unwrap_or_default(), used))
}

/// The character of a number; `None` if Python drops it.
fn character(number: u32) -> Option<char> {
    match number {
        0x80..=0x9f => char::from_u32(number).map(from_windows_1252),
        0x01..=0x08 | 0x0b | 0x0e..=0x1f | 0x7f | 0xfdd0..=0xfdef => None,
        // The last two of every plane are no characters.
        _ if number <= 0x10_ffff && number & 0xfffe == 0xfffe => None,
        0 => Some(char::REPLACEMENT_CHARACTER),
        _ => Some(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)),
    }
}
