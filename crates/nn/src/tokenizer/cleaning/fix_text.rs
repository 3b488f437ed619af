//! The repairs of `ftfy.fix_text`, version 6.3, in its default configuration.

use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use super::code_pages::from_windows_1252;
use super::html::unescape_closed;
use super::mojibake::fix_encoding;

/// Most characters that are repaired together.
const LONGEST_SEGMENT: usize = 1_000_000;

/// Repairs a text line by line: mojibake, character references, ligatures, widths, quotes, line breaks, terminal
/// escapes and control characters; the result is in normal form C.
///
/// A line with `<` may be HTML, so from there on character references are left as they are.
///
/// Every pass over a line can lay a further mistake open, so there are passes until nothing changes, mostly two or
/// three. A line that is still changing when its [`Effort`] is spent stays as it then is; that takes hundreds of
/// mistakes one inside the other. ftfy would go on, at a cost that grows with the square of the length.
pub(super) fn fix_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut unescapes = true;
    for segment in text.split_inclusive('\n').flat_map(segments) {
        unescapes &= !segment.contains('<');
        out.push_str(&fix_segment(segment, unescapes));
    }
    out
}

/// A line in pieces of [`LONGEST_SEGMENT`] characters.
fn segments(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let end = rest
            .char_indices()
            .nth(LONGEST_SEGMENT)
            .map_or(rest.len(), |(at, _)| at);
        let (segment, after) = rest.split_at(end);
        rest = after;
        (!segment.is_empty()).then_some(segment)
    })
}

fn fix_segment(segment: &str, unescapes: bool) -> String {
    let mut effort = Effort::of(segment);
    let mut text = segment.to_owned();
    loop {
        let before = text.clone();
        if unescapes {
            text = unescape_closed(&text);
        }
        text = fix_encoding(&text, &mut effort);
        text = fix_characters(&text);
        text = fix_line_breaks(&text);
        text = remove_terminal_escapes(&text);
        text.retain(|character| !is_unwanted_control(character));
        text = text.nfc().collect();
        if text == before || !effort.spend(text.len()) {
            return text;
        }
    }
}

/// How much the repair of one segment may still cost, so that the whole is linear in the length of the text.
#[derive(Debug)]
pub(super) struct Effort {
    bytes: usize,
}

impl Effort {
    /// Passes over the whole segment that are always made.
    const PASSES: usize = 100;
    /// Bytes that are always worked through: more than a thousand passes over anything that is called a prompt.
    const ANYWAY: usize = 1 << 20;

    fn of(segment: &str) -> Self {
        let bytes = segment.len().saturating_mul(Self::PASSES).saturating_add(Self::ANYWAY);
        Self { bytes }
    }

    /// Takes account of a pass over `bytes`; false when there is nothing left for another one.
    pub(super) fn spend(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.bytes > 0
    }
}

/// Control characters of Latin-1 that were meant as windows-1252, ligatures, full and half widths, curly quotes.
fn fix_characters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars().map(from_windows_1252) {
        match character {
            '\u{3000}' => out.push(' '),
            '\u{ff01}'..='\u{ffef}' => out.extend(std::iter::once(character).nfkc()),
            _ => match ligature(character) {
                Some(letters) => out.extend(letters.chars().map(straight_quote)),
                None => out.push(straight_quote(character)),
            },
        }
    }
    out
}

/// The letters of a ligature that no language needs. `æ` and `œ` are not among them.
fn ligature(character: char) -> Option<&'static str> {
    Some(match character {
        'Ĳ' => "IJ",
        'ĳ' => "ij",
        'ŉ' => "ʼn",
        'Ǳ' => "DZ",
        'ǲ' => "Dz",
        'ǳ' => "dz",
        'Ǆ' => "DŽ",
        'ǅ' => "Dž",
        'ǆ' => "dž",
        'Ǉ' => "LJ",
        'ǈ' => "Lj",
        'ǉ' => "lj",
        'Ǌ' => "NJ",
        'ǋ' => "Nj",
        'ǌ' => "nj",
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' => "ſt",
        'ﬆ' => "st",
        _ => return None,
    })
}

fn straight_quote(character: char) -> char {
    match character {
        '\u{2bc}' | '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        other => other,
    }
}

fn fix_line_breaks(text: &str) -> String {
    text.replace("\r\n", "\n")
        .replace(['\r', '\u{2028}', '\u{2029}', '\u{85}'], "\n")
}

/// Removes what colours a terminal's text and moves its cursor.
fn remove_terminal_escapes(text: &str) -> String {
    static ESCAPE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\x1b\[[\d;]*[a-zA-Z]").expect("a valid pattern"));
    ESCAPE.replace_all(text, "").into_owned()
}

/// Control characters without an effect: those of ASCII but for white space, deprecated ones of Arabic, interlinear
/// annotations, the object replacement character and the byte-order mark.
fn is_unwanted_control(character: char) -> bool {
    matches!(
        character,
        '\0'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffc}'
    )
}
